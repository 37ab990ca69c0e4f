"""The result of a lowering: the model and the report, with one entry for each recurrent node."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import onnx

from rnnqc.cells.forms import QONNX
from rnnqc.codes import Code, Told, all_told, coded, told
from rnnqc.data.statistics import Statistics
from rnnqc.errors import byte_count, explained
from rnnqc.ir import Model
from rnnqc.lowering.options import REST_INT8
from rnnqc.lowering.reports.rest_report import RestReport, told_of_rest
from rnnqc.lowering.verification_feeds import CALIBRATION_DATA, GENERATED_DATA
from rnnqc.measure.verdict import SHOWS_LITTLE
from rnnqc.passes.verify.pass_comparison import NOT_COMPARED, OWN_LOSS
from rnnqc.proto.files import serialized, write_atomically
from rnnqc.recipes.resolved import ResolvedPoint
from rnnqc.results import Result

NOTHING = "nothing was quantized"


@dataclass
class Entry:
    """The result for one recurrent node.

    Attributes:
        node: Its name, with the path through subgraphs.
        op: Operator type.
        status: "lowered", "float", or "quantized" (already, by another tool).
        form: "fused", "integer", "qcdq", "qonnx", "ort", "weight-only", "products", or "" for a float node.
        reason: Why it stays as it is, or why its form is not the requested one.
        found: The cause in the model.
        action: What to do about it.
        code: The code of the reason: the pass that gives it, or "layer".
        cells: Names of the cells it became, one per direction.
        float_bytes: Size of its W, R, B and P before; weights shared by layers count at the first of them.
        bytes: Size of the quantized weights with their multipliers, B and P; shared ones count at the first cell.
        summary: For a custom cell: how much of it was quantized.
        points: For a custom cell: the bits of each quantization point, None where it is float.
        earlier: Whether an earlier lowering produced its form.
        left: For a custom cell: its matmuls that cannot be quantized.
    """

    node: str
    op: str
    status: str
    form: str = ""
    reason: str = ""
    found: str = ""
    action: str = ""
    code: str = Code.LAYER.word
    cells: list[str] = field(default_factory=list)
    float_bytes: int = 0
    bytes: int = 0
    summary: str = ""
    points: dict[str, int | None] = field(default_factory=dict)
    earlier: bool = False
    left: list[str] = field(default_factory=list)

    @property
    def explanation(self) -> str:
        """A sentence for people: why the node stays float or is not in the requested form."""
        stays = {"float": "stays float", "quantized": "stays as it is"}
        what = stays.get(self.status) or f"{'stays in form' if self.earlier else 'becomes'} {self.form}"
        return self._said(f" {what}")

    @property
    def remark(self) -> str:
        """The reason of a node in the requested form: a remark on how it got there."""
        return self._said("")

    def _said(self, what: str) -> str:
        return explained(f'Operator "{self.op}" (node {self.node!r}){what}: {self.reason}', self.found, self.action)


@dataclass(repr=False)
class Report(Result):
    """The result of a lowering, for people and for programs.

    Attributes:
        source: The model that was lowered.
        recipe: Name of the recipe.
        form: The requested form.
        entries: One per recurrent node.
        rest: The float weights outside the recurrent layers.
        dims: Dimensions bound in addition to the requested ones: a layer's input and states need equal rows.
        slow_stock: Which layers are slower than in float without the native library, and what to do; or "".
        notes: Other remarks of the passes.
        warnings: See `rnnqc.lowering.reports.warnings`.
        float_bytes: Size of the model before, its external data included.
        bytes: Size of the model after.
        seconds: Time of each pass.
        checks: Comparisons of `verify` (pass, result), and those it could not make, with the reason.
        verified: Passes whose outputs `verify` compared each time that they changed the model.
        unverified: Passes that changed the model when `verify` could not compare it; `checks` says why.
        contents: The largest parts of the file, if it has grown.
        sqnr_db: SQNR of each output against the float model, if measured: on some calibration data, or the lowest
            on generated data of several magnitudes. Only values that are finite in both models count.
        sqnr_level: The data on which each output has that SQNR, such as "magnitude 10" or "calibration data".
        sqnr_levels: The SQNR of each output on each of these.
        sqnr_summary: The lowest of them in words; "" if nothing was measured.
        unmeasured: Why the SQNR was not measured, or not at all magnitudes.
        unlike: From the same measurement: a sentence for each output with values that are NaN or infinite in only one
            of the models.
        varying_db: On calibration data, for each output that is nearly constant: the SQNR of its deviation from the
            mean.
        negligible: On calibration data, for each output from 0 to 1 that is near zero there with an error that is tiny,
            too: its largest error. Its SQNR shows little.
        constant: Whether no output varies on the data of the measurement, which shows little then.
        points: The format of each quantization point of LSTM, GRU and RNN layers, exported ones too, with its source.
        quantized_outputs: The formats of outputs that are quantized values, by name.
        suspected_steps: Advice for a model in which nothing recurrent was lowered, and that may be one step of a
            recurrent layer; `warnings` has it, too.
    """

    source: str
    recipe: str
    form: str
    entries: list[Entry] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warnings: list[Told] = field(default_factory=list)
    float_bytes: int = 0
    bytes: int = 0
    seconds: list[tuple[str, float]] = field(default_factory=list)
    checks: list[tuple[str, str]] = field(default_factory=list)
    verified: list[str] = field(default_factory=list)
    unverified: list[str] = field(default_factory=list)
    contents: str = ""
    sqnr_db: dict[str, float] = field(default_factory=dict)
    sqnr_level: dict[str, str] = field(default_factory=dict)
    sqnr_levels: dict[str, dict[str, float]] = field(default_factory=dict)
    sqnr_summary: str = ""
    unmeasured: str = ""
    unlike: list[str] = field(default_factory=list)
    varying_db: dict[str, float] = field(default_factory=dict)
    negligible: dict[str, float] = field(default_factory=dict)
    constant: bool = False
    slow_stock: str = ""
    rest: RestReport = field(default_factory=RestReport)
    points: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)
    suspected_steps: list[str] = field(default_factory=list)
    quantized_outputs: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def headline(self) -> str:
        """Recipe, form, sizes, and the SQNR if measured; or that nothing was lowered."""
        files = f"file {byte_count(self.float_bytes)} -> {byte_count(self.bytes)}"
        sqnr = f"; {self.accuracy}" if self.sqnr_summary else ""
        if self.is_changed or self.rest.is_changed:
            return f"{self.source}, recipe {self.recipe}, form {self.form}: {files}{sqnr}"
        return f"{self.source}, recurrent nodes: {self.how_many}; {files}{sqnr}"

    @property
    def accuracy(self) -> str:
        """The measured accuracy in words, and whether it shows little; "" if nothing was measured."""
        measured = self._measured
        little = f"; {SHOWS_LITTLE}: rnnqc verify with --data shows more" if measured and self.constant else ""
        name = self.worst_output
        if name in self.negligible:
            little += (
                f"; {name!r} is near zero there, of a range from 0 to 1, and {self.negligible[name]:.2g} off at most"
            )
        return f"{measured}{little}"

    @property
    def _measured(self) -> str:
        if self.sqnr_db and min(self.sqnr_db.values()) == math.inf:
            return f"on {self.measured_on} the outputs are those of the model given"
        if self.is_measured_on_calibration:
            return f"SQNR on {self.measured_on}: {self.sqnr_summary}"
        if len(self.sqnr_levels) == 1:  # calibrated: other magnitudes lie beyond the ranges and were not measured
            return f"SQNR on {self.measured_on} of {next(iter(self.sqnr_levels))}: {self.sqnr_summary}"
        kinds = len(self.sqnr_levels)
        return f"SQNR on {self.measured_on}, least of {kinds} kinds: {self.sqnr_summary}" if self.sqnr_summary else ""

    @property
    def is_measured_on_calibration(self) -> bool:
        """Whether the SQNR was measured on calibration data."""
        return CALIBRATION_DATA in self.sqnr_levels

    @property
    def measured_on(self) -> str:
        """The data of the SQNR, in words."""
        return "the calibration data" if self.is_measured_on_calibration else "generated data"

    @property
    def how_many(self) -> str:
        """The number of lowered recurrent nodes, with the recipe if it was applied now."""
        count = sum(e.status == "lowered" for e in self.entries)
        text = f"{count} of {len(self.entries)} lowered"
        if self.is_changed:
            return f"{text} (recipe {self.recipe}, {self._forms})"
        return f"{text} already ({self._forms})" if count else text

    @property
    def _forms(self) -> str:
        """The forms of the nodes, which may differ from the requested one."""
        count = Counter(e.form for e in self.entries if e.status == "lowered" and e.form)
        if len(count) <= 1:
            return f"form {next(iter(count), self.form)}"
        return "forms " + ", ".join(f"{form} {n}" for form, n in sorted(count.items()))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row for each recurrent node."""
        return [
            {
                "node": e.node, "op": e.op, "status": e.status, "form": e.form, "float_bytes": e.float_bytes,
                "bytes": e.bytes, "reason": explained(e.reason, e.found, e.action) if e.reason else "",
            }
            for e in self.entries
        ]  # fmt: skip

    @property
    def worst_output(self) -> str | None:
        """The output with the lowest SQNR; None if nothing was measured."""
        return min(self.sqnr_db, key=lambda name: self.sqnr_db[name], default=None)

    @property
    def is_changed(self) -> bool:
        """Whether this lowering, not only an earlier one, lowered something."""
        return any(e.status == "lowered" and not e.earlier for e in self.entries)

    @property
    def weight_bytes(self) -> tuple[int, int]:
        """Bytes of all recurrent weights, before and after."""
        return sum(e.float_bytes for e in self.entries), sum(e.bytes for e in self.entries)

    @property
    def entries_not_lowered(self) -> Sequence[Entry]:
        """Nodes that `strict` refuses: they stay float, in whole or in part, or another tool has quantized them."""
        return [e for e in self.entries if e.status != "lowered" or e.left]

    def lacks(self, form: str | None) -> bool:
        """Whether no layer has a cell of a form that must not be missing: qonnx."""
        return form == QONNX and all(e.form != QONNX for e in self.entries)

    @property
    def how_they_stay(self) -> str:
        """The verb for nodes that are not lowered, for messages."""
        if len(self.float_entries) == len(self.entries_not_lowered):
            return "stay float"
        return "stay float in part" if all(e.left for e in self.entries_not_lowered) else "are not lowered"

    @property
    def suspicion(self) -> str:
        """Why `strict` refuses a model without a float node; "" if it does not."""
        return "the model may be one step of a recurrent layer, and is lowered as none" if self.suspected_steps else ""

    @property
    def float_entries(self) -> Sequence[Entry]:
        """The recurrent nodes that stay float."""
        return [e for e in self.entries if e.status == "float"]

    def told(self, is_bounded: bool = False) -> Iterator[tuple[str, Told]]:
        """Yields every message for the user: the option that it is about, or "", and the text.

        Args:
            is_bounded: Whether a lowest SQNR is required: then a missing measurement is an error, not a warning.
        """
        for entry in self.entries:
            if entry.reason:
                is_as_asked = (entry.status, entry.form) == ("lowered", self.form) and not entry.left
                yield "", coded(entry.code, entry.remark if is_as_asked else entry.explanation)
        yield from self._told_of_all(is_bounded)

    def _told_of_all(self, is_bounded: bool) -> Iterator[tuple[str, Told]]:
        """Yields the messages that are not about one recurrent node."""
        if not self.entries:
            changed = "only the weights of other layers were quantized" if self.rest.is_changed else NOTHING
            yield "", told(Code.NO_LAYER, f"the model has no recurrent layer; {changed}.")
        rest = told_of_rest([*self.rest.left, *self.rest.exported] if self.rest.option == REST_INT8 else ())
        for text in [*all_told(Code.REST, rest), *self.warnings]:
            yield "", text
        yield from self._told_of_verification()
        if self.unmeasured and (self.sqnr_db or not is_bounded):
            what = "measured on a part of the generated data alone" if self.sqnr_db else "not measured"
            yield "", told(Code.NOT_MEASURED, f"the SQNR was {what}: {self.unmeasured}")

    def _told_of_verification(self) -> Iterator[tuple[str, Told]]:
        """Yields the comparisons that `verify` could not make, and losses caused by the recipe."""
        for name, text in sorted({c for c in self.checks if c[1].startswith(NOT_COMPARED)}):
            reason = text.removeprefix(f"{NOT_COMPARED}: ")
            if name == CALIBRATION_DATA:
                text = f"the models were not compared on the calibration data, only on generated data: {reason}"
            elif name == GENERATED_DATA:
                text = f"the models were not compared on generated data: {reason}"
            else:
                text = f"pass {name!r} was {text}."
            yield "--verify", told(Code.VERIFY, text)
        for name, text in dict.fromkeys(c for c in self.checks if c[1].startswith(OWN_LOSS)):
            yield "--verify", told(Code.VERIFY, f"pass {name!r}: {text}.")

    @property
    def messages(self) -> list[Told]:
        """Messages about the whole model; those about a node are in its row."""
        return [text for _, text in self._told_of_all(False)]

    @property
    def hints(self) -> list[str]:
        """The speed without the native library, if it is lower than in float."""
        return [self.slow_stock] if self.slow_stock else []

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON-ready values."""
        return asdict(self)


@dataclass(repr=False)
class Lowered(Result):
    """A lowered model.

    Attributes:
        model: The model.
        report: The report.
        statistics: The statistics of the calibration, if there was one.
        formats: For each point of an LSTM, GRU or RNN, the recipe's setting and the resulting format.
    """

    model: Model
    report: Report
    statistics: Statistics | None = None
    formats: Mapping[str, ResolvedPoint] = field(default_factory=dict)
    _proto: onnx.ModelProto | None = None

    @property
    def proto(self) -> onnx.ModelProto:
        """The lowered ModelProto."""
        if self._proto is None:
            self._proto = self.model.proto
        return self._proto

    @property
    def headline(self) -> str:
        """The headline of the report."""
        return self.report.headline

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the report."""
        return self.report.rows

    @property
    def messages(self) -> list[Told]:
        """The messages of the report."""
        return self.report.messages

    @property
    def hints(self) -> list[str]:
        """The hints of the report."""
        return self.report.hints

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as JSON-ready values."""
        return self.report.to_dict()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model to `path`, atomically."""
        write_atomically(Path(path), serialized(self.proto, os.fspath(path)))
