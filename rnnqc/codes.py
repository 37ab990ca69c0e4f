"""Codes of warnings and remarks: the word in brackets at their end, for users to search and programs to filter.

The code of a pass's message is the name of the pass.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NewType

Told = NewType("Told", str)
"""A warning or remark that ends in its code: commands print only these as such."""


@enum.unique
class Code(enum.Enum):
    """The codes of errors, and of warnings that do not come from a pass: the word, and its meaning."""

    CALIBRATE = "calibrate", "something of the calibration's data or cells that its statistics do not show"
    CALIBRATION_DATA = "calibration-data", "the SQNR is that on generated data: the calibration data did not fit"
    CHECK = "check", "an error: a pass changed more than it declares, or a graph is broken; a defect of rnnqc"
    CLIPPED = "clipped", "a range, scale or limit of an override or of the recipe clips the calibration data"
    CONSTANT_OUTPUT = "constant-output", "no input has an influence on an output: an exporter lost layers"
    DATA_NOT_FINITE = "data-not-finite", "NaN or infinities in the data"
    EXPORTED_CELL = "exported-cell", "the recipe does not apply to Brevitas' cells, which keep their quantization"
    FIXED_LENGTH = "fixed-length", "an output is declared with a length that is open"
    FLOAT16_MATMUL = "float16-matmul", "a matmul of float16 that onnxruntime's optimizer breaks"
    IDLE_OVERRIDE = "idle-override", "an override changes nothing"
    IDLE_RULE = "idle-rule", "a rule of the recipe or an override matches nothing in the model"
    INTERNAL = "internal", "an error that nothing in rnnqc expects; a defect of rnnqc"
    LARGE_INPUT = "large-input", "values beyond 2^60, at which quantized layers saturate"
    LAYER = "layer", "why a layer stays as it is, or has another form than asked for, where no pass says so"
    LEFT_OUT_TABLE = "left-out-table", "form qcdq has no tables of Vitis'"
    LOW_SQNR = "low-sqnr", "an output has a low SQNR, or values that are NaN or infinite in one model alone"
    LOWERED_BEFORE = "lowered-before", "the recipe does not apply to layers that an earlier lowering has lowered"
    MEMORY = "memory", "an error: out of memory"
    NO_LAYER = "no-layer", "the model has no recurrent layer, or none that was lowered"
    NO_STATISTICS = "no-statistics", "rules of a recipe need statistics, and none are given"
    NOT_MEASURED = "not-measured", "a figure was not measured, or not on all data"
    NOT_RECOVERED = "not-recovered", "a layer recovered, or a model converted, that differs or was not compared"
    NOT_SORTED = "not-sorted", "`--remove-sorting` finds no sort to take out"
    OTHER_MODEL = "other-model", "a lowered model that was not made of this float model, or otherwise than it says"
    RANDOM_VALUES = "random-values", "a model that draws random numbers, and differs from itself"
    REFUSED = "refused", "an error: a model, data or a file that cannot be handled"
    REST = "rest", "why a weight around the recurrent layers stays float under `--rest int8`"
    SATURATION = "saturation", "int8 products that saturate on processors without VNNI"
    SEARCH_ENDED = "search-ended", "`tune` was stopped before it was done"
    SLOW_CELL = "slow-cell", "a custom cell without a kernel, slower than in float"
    STATES = "states", "states that the data carries oddly or not at all"
    STEP = "step", "the model may be one step of a recurrent layer"
    TRAINING_DROPOUT = "training-dropout", "a Dropout in training mode"
    UNSEEN_CELL = "unseen-cell", "a cell that never ran in the calibration"
    USAGE = "usage", "an error: options that contradict each other or name what does not exist"
    VERIFY = "verify", "what `--verify` could not compare, and losses that are the recipe's own"
    WIDE_STORAGE = "wide-storage", "form integer stores narrow weights in a byte each"

    def __init__(self, word: str, meaning: str) -> None:
        self.word, self.meaning = word, meaning


def told(code: Code, text: str) -> Told:
    """Returns a warning of one sentence or more, with its code."""
    return coded(code.word, text)


def all_told(code: Code, texts: Iterable[str]) -> list[Told]:
    """Returns warnings of one kind."""
    return [told(code, text) for text in texts]


def coded(word: str, text: str) -> Told:
    """Returns a message with its code: the name of a pass, or the word of a `Code`."""
    return Told(f"{text} [{word}]")
