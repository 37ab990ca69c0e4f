"""What a pass that moves integer cells about has to leave as it is: their constants and numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.ir import CELL_TAG, Model, attribute, display_name, info
from rnnqc.passes.constant_checks import ConstantCheck, Findings
from rnnqc.passes.render.check_fold_scales import operands_of

Array = npt.NDArray[Any]
INTEGER = ("integer", "fused")
_PACKED = {"W": "w_group_size", "R": "r_group_size"}


class KeptConstantsCheck(ConstantCheck):
    """Operands of integer cells, entry by entry, and the attributes of fused nodes.

    Args:
        model: Before the pass.
    """

    def __init__(self, model: Model) -> None:
        cells = [c for c in model.cells.values() if c.form in INTEGER]
        self._operands = operands_of(model, cells)
        self._numbers = {c.name: dict(c.integer) for c in cells}

    def findings(self, after: Model) -> Findings:
        """Compares every cell that is still there."""
        found = Findings()
        cells = [c for n, c in after.cells.items() if n in self._operands and c.form in INTEGER]
        operands = operands_of(after, cells)
        nodes = {info(n).metadata.get(CELL_TAG): n for g in after.graphs() for n in g.nodes if n.op.startswith("Quant")}
        for cell in cells:
            before, now = self._operands[cell.name], operands[cell.name]
            for key, array in before.items():
                held = now.get(key)
                if held is not None and key in _PACKED and held.dtype == np.uint8 != array.dtype:
                    size = cell.integer[_PACKED[key]]
                    held = _unpacked(held, now.get(f"{key}_group_multiplier"), array.shape, size)
                what, name = f"{key} of {cell.name}", cell.operands.get(key, "")
                found.array(what, held, array, node=cell.name, constant=name)
            node = nodes.get(cell.name) if cell.form == "fused" else None
            for key, number in self._numbers[cell.name].items() if node is not None else ():
                given = attribute(node, key, None)
                if given is not None and key not in _PACKED.values() and _is_numeric(number) and _is_numeric(given):
                    wanted = np.asarray(number, np.float32)
                    what = f"{key} of {cell.name}"
                    found.array(what, np.asarray(given, np.float32), wanted, node=display_name(node))
        return found


def _is_numeric(value: Any) -> bool:
    return all(isinstance(v, int | float) for v in (value if isinstance(value, list) else [value]))


def _unpacked(packed: Array, multiplier: Array | None, shape: tuple[int, ...], size: int) -> Array:
    """Codes `shape` from nibbles, times the multipliers of their groups of `size` rows."""
    nibbles = np.concatenate([packed & 15, packed >> 4], axis=1)[:, : shape[1]].astype(np.int64) - 8
    if multiplier is None:
        return nibbles
    return np.asarray(nibbles * np.repeat(multiplier.astype(np.int64), size, axis=0)[: shape[0]])
