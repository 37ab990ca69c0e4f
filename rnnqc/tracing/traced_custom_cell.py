"""Traces one custom cell: the tensors of its steps in a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.errors import CompileError
from rnnqc.passes.analysis.point_marks import CODES, CONSTANT, HIGH, LOW, MASK, REAL, ROWS, SUMS, UNIT, Mark
from rnnqc.passes.custom_cells.mark_custom_values import PREVIOUS
from rnnqc.tracing.custom_cells import CustomCellRun, Key, QuantizedCustomCell, Runs
from rnnqc.tracing.tensors import Tensor, dequantized

Array = npt.NDArray[Any]
_PER_STEP = (REAL, CODES, SUMS, HIGH)
_WEIGHTS = (".weight", ".weight.zero_point")


class TracedCustomCell:
    """Traces one custom cell.

    Args:
        cell: Its description in the model.
        runs: Extracts its values from a run of the model.
    """

    def __init__(self, cell: QuantizedCustomCell, runs: Runs) -> None:
        self.cell, self._runs = cell, runs
        self._marks: dict[Key, Mark] = {}
        self._order: dict[str, int] = {}
        for k, site in enumerate(cell.sites):
            self._marks.setdefault(site.key, site.mark)
            self._order[site.mark.tensor] = k
        self.constants: dict[str, Array] = {}
        self.weights: dict[str, Array] = {}
        for (name, part), value in runs.constants.items():
            if part == CONSTANT:
                self.constants[name] = value
            elif name.endswith(_WEIGHTS) and part in (CODES, HIGH):
                self.weights[f"{name}.codes" if name.endswith(_WEIGHTS[0]) else name] = self._weights(name, part, value)

    @property
    def description(self) -> dict[str, Any]:
        """The description of the cell for an index."""
        record = self.cell.record
        return {
            "op": record["op"],
            "form": record["form"],
            "direction": "reverse" if self.cell.backwards else "forward",
            "arithmetic": "products" if record["form"] == "integer" else "float",
            "hidden_size": None,
            "input_size": None,
        }

    def steps(self, run: CustomCellRun) -> Iterator[tuple[int, int, dict[str, Tensor]]]:
        """Yields the first step, the number of steps of the run, and the tensors of all its steps."""
        per_step = {key: held for key, held in run.values.items() if key[1] in _PER_STEP}
        rows = max(len(_matrix(a)) for held in per_step.values() for a in held.values())
        valid = self._valid(run, rows)
        made = {}
        for name in sorted({name for name, _ in per_step}, key=self._place):
            tensor = self._tensor(name, run, valid)
            if tensor.values.shape[1] == 1:
                tensor = tensor.each(lambda a: np.repeat(a, rows, axis=1))
            tensor = tensor if valid is None else tensor.masked(valid)
            made[name] = tensor.at(slice(None, None, -1)) if self.cell.backwards else tensor
        yield 0, run.steps, made

    def _valid(self, run: CustomCellRun, rows: int) -> Array | None:
        """Returns which rows have not ended, `[T,B]`; None if all rows run to the last step."""
        mask = run.values.get((MASK, MASK))
        if mask is None:
            return None
        return np.stack([np.broadcast_to(_matrix(mask[t])[:, 0], rows) for t in range(run.steps)])

    def absent(self, run: CustomCellRun) -> dict[str, list[int]]:
        """Returns, by tensor name, the steps that do not compute the tensor."""
        found: dict[str, list[int]] = {}
        for (name, part), values in run.values.items():
            missing = [t for t in range(run.steps) if t not in values]
            if part in _PER_STEP and missing:
                found[name] = missing
        return found

    def _place(self, name: str) -> tuple[bool, int, str]:
        """Sort key that puts tensors in the order of computation, with the initial states of the step first."""
        tensor = name.partition("~")[0]
        return not tensor.endswith(f".{PREVIOUS}"), self._order[tensor], name

    def _tensor(self, name: str, run: CustomCellRun, valid: Array | None) -> Tensor:
        tensor = name.partition("~")[0]
        if (name, REAL) in run.values:
            return self._real(name, tensor, run, valid)
        rows = self._array(name, ROWS, run)
        if (name, CODES) in run.values:
            mark, grid = self._marks[tensor, CODES], self._grid(tensor)
            zero = mark.zero if rows is not None else grid["zero_point"]
            codes = self._whole(name, CODES, run, blank=mark.raised + zero) - mark.raised
            scale = np.float32(grid["scale"]) if rows is None else None
            return dequantized(name, codes, scale=scale, row_scale=rows, zero_point=zero)
        # A matmul: its rows have the scales of its operand's rows.
        rows = self._array(f"{name.removesuffix('.product')}.hidden", ROWS, run)
        unit = self._runs.constants[tensor, UNIT]
        high = (name, HIGH) in run.values
        sums = (
            self._whole(name, HIGH, run) * 256 + self._whole(name, LOW, run) if high else self._whole(name, SUMS, run)
        )
        return dequantized(name, sums, scale=unit, row_scale=rows, real=np.float64)

    def _real(self, name: str, tensor: str, run: CustomCellRun, valid: Array | None) -> Tensor:
        """The tensor of a real value, with its quantized values where its format is static."""
        values = self._array(name, REAL, run)
        assert values is not None
        if valid is not None and values.shape[1] == valid.shape[1]:
            values = np.where(valid[:, :, None], values, np.float32(0))
        grid = self._grid(tensor)
        if not grid:
            return Tensor(name, values)
        scale, zero_point = np.float32(grid["scale"]), int(grid["zero_point"])
        with np.errstate(invalid="ignore"):
            units = np.rint(values / scale)
        if not np.isfinite(units).all():
            step = int(np.argwhere(~np.isfinite(units))[0][0])
            raise CompileError(
                f"Cell {self.cell.name!r}: {name!r} is {values[~np.isfinite(units)][0]} in step {step}.",
                supported="data for which all values in the cell are finite",
                action="dump the steps before it, or other data",
            )
        made = dequantized(name, units.astype(np.int64) + zero_point, scale=scale, zero_point=zero_point)
        if not np.array_equal(made.values, values):
            step = int(np.argwhere(made.values != values)[0][0])
            raise CompileError(
                f"Cell {self.cell.name!r}: {name!r} is not a quantized value in step {step} of the loop.",
                supported="cells as this version of rnnqc writes them",
                action="lower the float model again",
            )
        return made

    def _grid(self, tensor: str) -> Mapping[str, Any]:
        """Returns scale and zero point of a tensor's static format; empty if it has none."""
        record = self.cell.record
        point = tensor.removesuffix(f".{PREVIOUS}")
        found: Mapping[str, Any] = record["formats"].get(record["given"].get(point, point), {})
        return {"scale": found["scale"][0], "zero_point": found["zero_point"]} if found.get("mode") == "static" else {}

    def _array(self, name: str, part: str, run: CustomCellRun, blank: int = 0) -> Array | None:
        """Returns a value of all steps `[T,B,K]`, `blank` in steps without it; scales of rows are `[T,B,1]`."""
        held = run.values.get((name, part))
        if held is None:
            return None
        steps = {t: a.reshape(-1, 1) if part == ROWS else _matrix(a) for t, a in held.items()}
        rows = max(len(a) for a in steps.values())
        one = next(iter(steps.values()))
        none = np.full((rows, one.shape[1]), blank, one.dtype)
        return np.stack([np.broadcast_to(steps.get(t, none), none.shape) for t in range(run.steps)])

    def _whole(self, name: str, part: str, run: CustomCellRun, blank: int = 0) -> Array:
        """Returns the same values as int64."""
        array = self._array(name, part, run, blank)
        assert array is not None
        return array.astype(np.int64)

    def _weights(self, name: str, part: str, stored: Array) -> Array:
        """Returns quantized weights, or their zero points, in the point's format."""
        codes = stored.astype(np.int64)
        if part == HIGH:
            high, low = np.split(codes, 2, axis=-1)
            codes = high * 256 + low
        codes = codes - self._marks[name, part].raised
        small = min(codes.min(initial=0), -1 - codes.max(initial=0)) >= -128
        return codes.astype(np.int8 if small else np.int32)


def _matrix(array: Array) -> Array:
    """Reshapes the value of a step to rows `[B,K]`."""
    return array.reshape(-1, array.shape[-1]) if array.ndim > 1 else array.reshape(1, -1)
