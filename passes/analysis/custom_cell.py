"""A custom cell with its quantization points and the values they quantize."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from rnnqc.errors import NotHandled
from rnnqc.ir import Graph, Node, Value, constant_array
from rnnqc.passes.analysis.custom_products import CustomProduct
from rnnqc.passes.analysis.float_recurrences import FloatRecurrence
from rnnqc.passes.graph.loops.loop_states import State

WEIGHT, HIDDEN, BIAS, VALUE = "weight", "hidden", "bias", "value"
MEANINGS = (
    ("<product>.weight", "constant weights of a matrix product"),
    ("<product>.hidden", "the operand that they multiply, where it is not quantized to so few bits yet"),
    ("<product>.bias", "a constant that is added to the result of the matmul"),
    ("<node>.value", "any other value that is computed"),
    ("<node>.sigmoid.value, <node>.tanh.value", "the same of these two activations"),
    ("<value>.input.value", "a value from outside, such as an element of the sequence"),
)
"""Names of points, and one line for `rnnqc recipes --points`."""


@dataclass
class CustomCell:
    """A recurrence with its quantization points.

    Attributes:
        name: The prefix of the names of its points.
        recurrence: The recurrence found in the model.
        graph: The graph that holds its nodes: the body of a loop, or the graph with the unrolled steps.
        outer: The graph that holds the loop; `graph` without a loop.
        products: Matmuls with constant weights by name; one for each unrolled step.
        refused: Why other matmuls cannot be quantized.
        sums: The Add of a constant to a matmul, by the id of the matmul.
        edges: For each point of a value the quantized values; none for unrolled steps.
        entering: For each point the values of `outer` that get its format before the first step of a loop.
        origins: The point whose format a value has, by the id of the value.
        states: The states of a loop.
        region: Ids of the nodes of a loop that belong to it.
    """

    name: str
    recurrence: FloatRecurrence
    graph: Graph
    outer: Graph
    products: dict[str, list[CustomProduct]] = field(default_factory=dict)
    refused: list[NotHandled] = field(default_factory=list)
    sums: dict[int, Node] = field(default_factory=dict)
    edges: dict[str, list[Value]] = field(default_factory=dict)
    entering: dict[str, list[Value]] = field(default_factory=dict)
    origins: dict[int, str] = field(default_factory=dict)
    states: list[State] = field(default_factory=list)
    region: set[int] = field(default_factory=set)

    @property
    def points(self) -> list[str]:
        """The names of all points, without the name of the cell."""
        names = []
        for product, sites in self.products.items():
            biased = self.bias_of(sites[0]) is not None
            names += [f"{product}.{p}" for p in (WEIGHT, HIDDEN, *((BIAS,) if biased else ()))]
        return names + list(self.edges)

    @cached_property
    def quantizable(self) -> set[int]:
        """Ids of the values that quantizers may make inside, of a complete cell."""
        return {id(v) for values in self.edges.values() for v in values}

    @property
    def state_point(self) -> str | None:
        """The point of the first state that a matmul multiplies, or else of the first state; None without states."""
        carried = [self.origins[id(s.before)] for s in self.states if id(s.before) in self.origins]
        for sites in self.products.values():
            point = self.origins.get(id(sites[-1].x), "")
            if point in carried:
                return point
        return carried[0] if carried else None

    @property
    def state_made(self) -> Value | None:
        """The value that a step computes for `state_point`; None without states."""
        point = self.state_point
        made = (s.after for s in self.states if not s.invariant and self.origins.get(id(s.before)) == point)
        return next(made, None)

    def step_of(self, name: str, product: CustomProduct) -> int | None:
        """Returns the unrolled step of a matmul: the last matmul of each matrix is in the last step; None in a loop."""
        steps, sites = self.recurrence.steps, self.products[name]
        if steps is None:
            return None
        number = next(k for k, site in enumerate(sites) if site is product)
        return number * steps // len(sites) if len(sites) > steps else steps - len(sites) + number

    def bias_of(self, product: CustomProduct) -> Value | None:
        """Returns the constant added to a matmul, by itself or by the following Add; None without one."""
        if product.bias is not None:
            return product.bias if constant_array(product.bias) is not None else None
        node = self.sums.get(id(product.node))
        return None if node is None else next(v for v in node.inputs if constant_array(v) is not None)

    def sum_of(self, product: CustomProduct) -> Value:
        """Returns the value of a matmul plus its added constant."""
        node = self.sums.get(id(product.node), product.node)
        return node.outputs[0]
