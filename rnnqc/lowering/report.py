"""What a lowering did, one entry per recurrent node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rnnqc.measure.measurement import Measured


@dataclass
class Entry:
    """What became of one recurrent node.

    Attributes:
        node: Its name, with the path through subgraphs.
        op: Operator type.
        status: "lowered", "float", or "quantized": already, by another tool.
        form: "fused", "integer", "qcdq", "qonnx", "weight-only", "products", or "" for a float node.
        reason: Why it stays as it is, or why its form is not the one asked for.
        found: What stands in the way.
        action: What to do about it.
        cells: Names of the cells it became, one per direction.
        float_bytes: Size of its W, R, B and P before.
        bytes: Size after: of the codes, of their multipliers, of B and P; initializers that its cells share count once.
        summary: Of a recurrence of unknown equations: how much of it was quantized.
        points: Of such a one the bits of each quantization point, None where it is float.
        earlier: Whether an earlier lowering made it what it is.
        left: Of a recurrence of unknown equations: its matrix products that cannot be quantized.
    """

    node: str
    op: str
    status: str
    form: str = ""
    reason: str = ""
    found: str = ""
    action: str = ""
    cells: list[str] = field(default_factory=list)
    float_bytes: int = 0
    bytes: int = 0
    summary: str = ""
    points: dict[str, int | None] = field(default_factory=dict)
    earlier: bool = False
    left: list[str] = field(default_factory=list)

    @property
    def explanation(self) -> str:
        """Why the node stays float, or is not in the form asked for, as a sentence for people."""
        stays = {"float": "stays float", "quantized": "stays as it is"}
        what = stays.get(self.status) or f"becomes {self.form}"
        text = f'Operator "{self.op}" (node {self.node!r}) {what}: {self.reason}'
        text += f" Found: {self.found}." if self.found else ""
        return text + (f" Resolution: {self.action}." if self.action else "")


@dataclass
class Report:
    """The result of a lowering, for people and for programs.

    Attributes:
        source: The model that was lowered.
        recipe: Name of the recipe.
        form: The form asked for.
        entries: One per recurrent node.
        notes: Everything else passes had to say.
        warnings: What a recipe file says in vain, what a calibration could not observe, overrides that clip its data.
        float_bytes: Size of the model before, its external data included.
        bytes: Size of the model after.
        seconds: Time of each pass.
        checks: What `verify` compared (pass, result), and what it did not, with the reason: passes, or the calibration
            data.
        verified: Passes of which `verify` compared the outputs, each time that they changed the model.
        unverified: Passes that changed the model when it could not; `checks` says why.
        contents: Where the model has grown, what takes the room.
        sqnr_db: SQNR of each output against the float model on generated data, where it was measured: the least of
            several magnitudes, of the values that are finite in both.
        sqnr_level: Of each output where it has that, such as "magnitude 10".
        sqnr_levels: Of each magnitude the SQNR of each output.
        sqnr_summary: The least of them in words; "" where nothing was measured.
        unmeasured: Why the SQNR was not measured, or not at all magnitudes.
        unlike: Of the same measurement: a sentence for each output with values that are NaN or infinite in one of the
            models only.
    """

    source: str
    recipe: str
    form: str
    entries: list[Entry] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
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

    def take(self, measured: Measured) -> None:
        """Takes over what was measured, with a warning where that is poor."""
        self.sqnr_db, self.sqnr_level, self.sqnr_levels = measured.sqnr_db, measured.level, measured.levels
        self.sqnr_summary = measured.summary if measured.worst is not None else ""
        self.unlike, self.unmeasured = measured.unlike, measured.missing
        self.warnings += [measured.warning] if measured.warning is not None else []

    @property
    def entries_not_lowered(self) -> Sequence[Entry]:
        """What `strict` refuses: nodes that stay float, in whole or in part, or quantized by another tool."""
        return [e for e in self.entries if e.status != "lowered" or e.left]

    @property
    def how_they_stay(self) -> str:
        """How the nodes that are not lowered stay, for messages."""
        if len(self.float_entries) == len(self.entries_not_lowered):
            return "stay float"
        return "stay float in part" if all(e.left for e in self.entries_not_lowered) else "are not lowered"

    @property
    def float_entries(self) -> Sequence[Entry]:
        """The recurrent nodes that stay float."""
        return [e for e in self.entries if e.status == "float"]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return asdict(self)
