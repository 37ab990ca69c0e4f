"""The passes that every lowering, calibration and inspection begins with."""

from __future__ import annotations

from rnnqc.passes.base import Pass
from rnnqc.passes.canonicalize import Canonicalize
from rnnqc.passes.read_weight_codes import ReadWeightCodes
from rnnqc.passes.recognize_lstm_step import RecognizeLstmStep
from rnnqc.passes.repair_lstm_export import RepairLstmExport


def normal_form(*, keep_codes: bool = False) -> list[Pass]:
    """The passes before the recurrent nodes are counted.

    Args:
        keep_codes: Whether weights that are stored as codes stay codes.
    """
    return [
        RepairLstmExport(),
        ReadWeightCodes(keep=keep_codes),
        Canonicalize(keep_codes=keep_codes),
        RecognizeLstmStep(),
    ]
