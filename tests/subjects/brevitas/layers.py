"""QuantLSTM layers made, trained and exported with Brevitas itself, and inputs for them that keep away from ties.

Brevitas multiplies float32 matrices in an order that nobody specifies, so that a code next to a tie of an accumulator
may fall either way. `draw` takes inputs of which no output changes when all products move by more than any order of
summation can move them.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import onnx
import torch
from brevitas import quant
from brevitas.export import export_onnx_qcdq, export_qonnx
from brevitas.nn import QuantLSTM

torch.set_num_threads(1)  # the layers are small

Array = npt.NDArray[np.float32]
PARTS = ("io", "gate_acc", "sigmoid", "tanh", "cell_state")
NONE: Mapping[str, Any] = {f"{part}_quant": None for part in (*PARTS, "bias")}
"""Arguments that leave only weights quantized."""
NOISE = 2.0**-20  # 16 roundings of a sum of float32 products
ATTEMPTS = 40


@dataclass(frozen=True)
class Layer:
    """A layer to make.

    Attributes:
        arguments: Of QuantLSTM; quantizers by the name of their class in `brevitas.quant`.
        input_size: I.
        hidden: H.
        length: T.
        batch: B.
        steps: Forward passes in training mode, which collect ranges.
        qat: Steps of stochastic gradient descent.
        states: Whether initial states are given.
        exact: Whether all sums are exact in any order: scales that are powers of two.
        seed: Of everything.
        input_scale: Standard deviation of the inputs.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    input_size: int = 7
    hidden: int = 9
    length: int = 4
    batch: int = 2
    steps: int = 2
    qat: int = 0
    states: bool = False
    exact: bool = False
    seed: int = 0
    input_scale: float = 0.6

    @property
    def batch_first(self) -> bool:
        """Whether X is `[B,T,I]`."""
        return bool(self.arguments.get("batch_first"))

    def module(self) -> QuantLSTM:
        """The trained layer, in evaluation mode."""
        torch.manual_seed(self.seed)
        named = {
            k: getattr(quant, v) if k.endswith("_quant") and isinstance(v, str) else v
            for k, v in self.arguments.items()
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            layer = QuantLSTM(self.input_size, self.hidden, **named)
            layer.train()
            for _ in range(self.steps):
                layer(*self._random())
            if self.qat:
                optimizer = torch.optim.SGD(layer.parameters(), lr=0.3)
                for _ in range(self.qat):
                    optimizer.zero_grad()
                    outputs = layer(*self._random())[0]
                    (outputs - 0.3).pow(2).mean().backward()
                    optimizer.step()
            layer.eval()
        return layer

    def _random(self) -> list[torch.Tensor]:
        shape = (self.batch, self.length) if self.batch_first else (self.length, self.batch)
        x = torch.randn((*shape, self.input_size)) * self.input_scale
        if not self.states:
            return [x]
        # Brevitas indexes states by 2 * layer + direction, with one direction as well.
        directions = 2 if self.arguments.get("bidirectional") else 1
        rows = 2 * (self.arguments.get("num_layers", 1) - 1) + directions
        return [x, *(torch.randn(rows, self.batch, self.hidden) * 0.4 for _ in range(2))]

    def draw(self, module: QuantLSTM) -> tuple[list[torch.Tensor], list[Array]]:
        """Inputs, and what Brevitas makes of them, whatever the order of its sums.

        Raises:
            AssertionError: There are none.
        """
        torch.manual_seed(self.seed + 1000)
        for _ in range(ATTEMPTS):
            inputs = self._random()
            expected = forward(module, inputs)
            if self.exact:
                with moved_products(0):
                    assert _equal(expected, forward(module, inputs)), "sums are not exact"
                return inputs, expected
            if is_far_from_ties(module, inputs):
                return inputs, expected
        raise AssertionError("no inputs away from ties")


_prepared: dict[str, tuple[QuantLSTM, list[torch.Tensor], list[Array]]] = {}


def prepared(layer: Layer) -> tuple[QuantLSTM, list[torch.Tensor], list[Array]]:
    """A trained layer, inputs for it that keep away from ties, and its outputs; made once."""
    key = repr(layer)
    if key not in _prepared:
        module = layer.module()
        _prepared[key] = (module, *layer.draw(module))
    return _prepared[key]


def forward(module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> list[Array]:
    """Everything a layer returns, flat; what is no tensor of floats is left out."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [t.numpy() for t in _tensors(module(*inputs))]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if torch.is_tensor(value):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)


def is_far_from_ties(module: QuantLSTM, inputs: Sequence[torch.Tensor]) -> bool:
    """Whether no order of the sums would change an output."""
    expected = forward(module, inputs)
    return all(_equal(expected, _moved(module, inputs, k)) for k in range(4))


def _moved(module: QuantLSTM, inputs: Sequence[torch.Tensor], seed: int) -> list[Array]:
    with moved_products(seed + 1):
        return forward(module, inputs)


def _equal(a: Sequence[Array], b: Sequence[Array]) -> bool:
    return all(np.array_equal(p, q) for p, q in zip(a, b, strict=True))


@contextmanager
def moved_products(seed: int) -> Iterator[None]:
    """Makes matmuls exact sums, plus random errors as large as those of float32 sums; exact with seed 0."""
    generator = torch.Generator().manual_seed(seed)

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        assert bias is None
        exact = x.double() @ weight.double().T
        size = x.double().abs() @ weight.double().abs().T
        signs = torch.randint(0, 2, exact.shape, generator=generator).double() * 2 - 1
        return (exact + (signs * size * NOISE if seed else 0)).float()

    with mock.patch("torch.nn.functional.linear", linear):
        yield


def export(
    module: torch.nn.Module, inputs: Sequence[torch.Tensor], qcdq: bool = False, **arguments: Any
) -> onnx.ModelProto:
    """The model that Brevitas exports."""
    held = io.BytesIO()
    arguments.setdefault("dynamo", False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (export_onnx_qcdq if qcdq else export_qonnx)(module, args=tuple(inputs), export_path=held, **arguments)
    return onnx.load_from_string(held.getvalue())


def feeds_of(model: onnx.ModelProto, inputs: Sequence[torch.Tensor]) -> dict[str, Array]:
    """Inputs by name; Brevitas lists initializers as inputs, too."""
    stored = {t.name for t in model.graph.initializer}
    names = [i.name for i in model.graph.input if i.name not in stored]
    return {n: t.numpy() for n, t in zip(names, inputs, strict=True)}
