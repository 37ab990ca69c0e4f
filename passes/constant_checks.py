"""Checks of constants that a pass writes: derived independently of the pass and compared element by element."""

from __future__ import annotations

import abc
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.ir import Model, Node, constant_array, display_name

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class WrongConstant:
    """A constant that differs from its definition.

    Attributes:
        what: Description, for example "scale of lstm.forward.W.weight".
        constant: Its name; empty for a number that the pass keeps about a cell.
        node: The node that reads it, or the cell.
        index: Index of the element with the largest error; empty for a scalar.
        found: The value of that element.
        expected: Its value by definition.
        count: Number of wrong elements.
    """

    what: str
    constant: str
    node: str
    index: tuple[int, ...]
    found: float | str
    expected: float | str
    count: int = 1

    def __str__(self) -> str:
        name = f"constant {self.constant!r} of " if self.constant else ""
        at = f" at [{', '.join(map(str, self.index))}]" if self.index else ""
        others = f" ({self.count} such entries)" if self.count > 1 else ""
        return f"{self.what}: {name}{self.node!r}{at} is {_text(self.found)}, not {_text(self.expected)}{others}"

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields as JSON data."""
        plain = {"what": self.what, "constant": self.constant, "node": self.node, "index": list(self.index)}
        return {**plain, "found": self.found, "expected": self.expected, "count": self.count}


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.9g}"


@dataclass
class Findings:
    """The result of comparing the constants of a pass.

    Attributes:
        compared: Number of constants compared.
        wrong: The wrong ones, in the order of the model.
        passed_over: Constants that could not be compared, each with the reason.
    """

    compared: int = 0
    wrong: list[WrongConstant] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        text = f"constants: {self.compared} compared"
        if self.passed_over:
            text += f", {len(self.passed_over)} passed over: {', '.join(self.passed_over)}"
        return text

    def array(
        self,
        what: str,
        found: Array | None,
        expected: npt.ArrayLike,
        *,
        node: str,
        constant: str = "",
        ulps: float = 0.0,
    ) -> bool:
        """Compares a constant with its expected value.

        Args:
            what: Description of the constant.
            found: The constant, None if there is none.
            expected: The expected value; a scalar applies to all elements.
            node: The node that reads it, or the cell.
            constant: Its name.
            ulps: Allowed error in float32 units in the last place.
        """
        self.compared += 1
        if found is None:
            self.wrong.append(WrongConstant(what, constant, node, (), "missing", "present"))
            return False
        wanted = np.asarray(expected)
        if wanted.size != 1 and wanted.shape != found.shape:
            shapes = f"of shape {list(found.shape)}", f"of shape {list(wanted.shape)}"
            self.wrong.append(WrongConstant(what, constant, node, (), *shapes))
            return False
        a = found.astype(np.float64)
        b = np.full(found.shape, wanted.ravel()[0], np.float64) if wanted.size == 1 else wanted.astype(np.float64)
        allowed = ulps * np.spacing(np.abs(b).astype(np.float32)).astype(np.float64)
        off = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b) - allowed)
        bad = ~(off <= 0.0)
        if not bad.any():
            return True
        place = np.unravel_index(int(np.argmax(np.where(bad, np.nan_to_num(off, nan=np.inf), -1.0))), found.shape)
        index = tuple(int(k) for k in place)
        self.wrong.append(WrongConstant(what, constant, node, index, float(a[index]), float(b[index]), int(bad.sum())))
        return False

    def input(self, what: str, node: Node, position: int, expected: npt.ArrayLike) -> bool:
        """Compares a constant input of a node with its expected value."""
        value = node.inputs[position] if position < len(node.inputs) else None
        held = constant_array(value) if value is not None and value.name else None
        name = value.name if value is not None else ""
        return self.array(what, held, expected, node=display_name(node), constant=name)

    def word(self, what: str, found: Any, expected: Any, *, node: str) -> bool:
        """Compares a value that is not numeric or must be equal."""
        self.compared += 1
        if found == expected:
            return True
        self.wrong.append(WrongConstant(what, "", node, (), str(found), str(expected)))
        return False


class ConstantCheck(abc.ABC):
    """Created from the model before a pass; checks the model after it."""

    @abc.abstractmethod
    def findings(self, after: Model) -> Findings:
        """Compares the constants that the pass has written with their expected values."""

    def without_loss(self, after: Model) -> onnx.ModelProto | None:
        """Returns the model after the pass without its declared losses; None if that is impossible.

        It must compute the same as the model before the pass, except for rounding.
        """
        return None
