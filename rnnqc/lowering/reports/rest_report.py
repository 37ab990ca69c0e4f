"""Reports float weights outside the recurrent layers: one entry for each operator that holds one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rnnqc.errors import byte_count, explained
from rnnqc.passes.analysis.exported_weights import CAME_QUANTIZED, ExportedWeight
from rnnqc.passes.analysis.rest_weights import CONVOLUTION, EMBEDDING, LINEAR, RestWeight, WeightUse
from rnnqc.passes.base import PassResult, StoredWeight

FLOAT, QUANTIZED, EXPORTED = "float", "quantized", "exported"
NOT_ASKED = "--rest int8 was not asked for."


@dataclass
class RestEntry:
    """An operator outside the recurrent layers that holds a float weight.

    Attributes:
        node: Its name, with the path through subgraphs.
        op: Operator type.
        kind: "linear layers", "embeddings" or "convolutions".
        weight: Name of the weight.
        shape: Shape of the weight.
        status: "float", "quantized" now, or "exported": it was already quantized, and stays as it is.
        form: The form of a quantized weight, such as "int8 rows".
        reason: Why it cannot be stored as int8; "" if it can.
        found: The cause in the model.
        action: What to do about it.
        is_small: Whether the reason is that int8 would save too little.
        float_bytes: Size of the float weight.
        bytes: Size of the stored weight now.
        shares: The first node with the same weight; "" for that node. A shared weight counts once in all sums.
    """

    node: str
    op: str
    kind: str
    weight: str
    shape: list[int]
    status: str
    form: str = ""
    reason: str = ""
    found: str = ""
    action: str = ""
    is_small: bool = False
    float_bytes: int = 0
    bytes: int = 0
    shares: str = ""

    @property
    def explanation(self) -> str:
        """The reason why the weight stays float, as a sentence for people."""
        stays = "stays as it is" if self.status == EXPORTED else "stays float"
        what = f'Operator "{self.op}" (node {self.node!r}) {stays}: {self.reason or NOT_ASKED}'
        return explained(what, self.found, self.action)


@dataclass
class RestReport:
    """The float weights outside the recurrent layers.

    Attributes:
        option: The option: "float" or "int8".
        entries: One for each operator that holds one.
        float_bytes: Size of all weights before.
        bytes: Size of the stored weights now.
        int8_bytes: Approximate size of all of them with `--rest int8`.
        exported: One for each operator whose weight was already quantized; the sums leave them out.
    """

    option: str = FLOAT
    entries: list[RestEntry] = field(default_factory=list)
    float_bytes: int = 0
    bytes: int = 0
    int8_bytes: int = 0
    exported: list[RestEntry] = field(default_factory=list)

    @property
    def is_changed(self) -> bool:
        """Whether a weight was quantized now."""
        return any(e.status == QUANTIZED for e in self.entries)

    @property
    def left(self) -> Sequence[RestEntry]:
        """The operators that stay float although int8 would make their weights smaller, as far as is known."""
        return [e for e in self.entries if e.status == FLOAT and not e.is_small]

    @property
    def how_many_stay(self) -> str:
        """The number of such operators in words, for messages."""
        return f"{len(self.left)} operator(s) around the recurrent layers stay float"

    @property
    def kinds(self) -> str:
        """The kinds of the weights in words: "linear layers, embeddings and convolutions"."""
        large = {e.kind for e in self.entries if not e.is_small} or {e.kind for e in self.entries}
        *first, last = [k for k in (LINEAR, EMBEDDING, CONVOLUTION) if k in large] or [""]
        return f"{', '.join(first)} and {last}" if first else last

    def summary(self, file_bytes: int) -> str:
        """One line about the weights, in a file of `file_bytes`; "" if there are no such weights."""
        if not self.entries:
            return ""
        if self.is_changed:
            small = sum(e.is_small for e in self.entries)
            left = f", {len(self.left)} operator(s) stay float" if self.left else ""
            left += f", {small} operator(s) with weights too small to gain" if small else ""
            return f"{self.kinds}: {byte_count(self.float_bytes)} -> {byte_count(self.bytes)}{left}"
        share = f" ({100 * self.bytes / file_bytes:.0f} %)" if file_bytes else ""
        text = f"{self.kinds} stay float: {byte_count(self.bytes)} of {byte_count(file_bytes)}{share}"
        if self.int8_bytes >= self.bytes:
            return text
        return f"{text}; --rest int8 would store them in about {byte_count(self.int8_bytes)}"


def stored_weights(results: Sequence[PassResult]) -> dict[str, StoredWeight]:
    """Returns the weights that replace float weights, by the path of the operator."""
    return {path: stored for result in results for path, stored in result.stored.items()}


def rest_report(
    weights: Sequence[RestWeight],
    left: Sequence[RestWeight],
    stored: Mapping[str, StoredWeight] | None = None,
    option: str = FLOAT,
    exported: Sequence[ExportedWeight] = (),
) -> RestReport:
    """Makes the report of the weights around the recurrent layers.

    Args:
        weights: The weights before any of them is quantized.
        left: The weights that are float now.
        stored: The weights that replace the others.
        option: The option.
        exported: Operators whose weights were already quantized; those that became float have entries as such.
    """
    report, stored = RestReport(option), stored or {}
    listed = {u.path for w in weights for u in w.uses}
    report.exported = [_exported(e) for e in exported if e.path not in listed]
    floats = {u.path for w in left for u in w.uses} - stored.keys()  # float16 weights come from a Cast
    constants: dict[str, int] = {}
    for weight in weights:
        for use in weight.uses:
            report.entries.append(_entry(weight, use, use.path in floats, stored.get(use.path)))
            constants |= stored[use.path].constants if use.path in stored else {}
        report.float_bytes += weight.bytes
        report.int8_bytes += weight.int8_bytes
        report.bytes += weight.bytes if any(u.path in floats for u in weight.uses) else 0
    report.bytes += sum(constants.values())
    return report


def _exported(found: ExportedWeight) -> RestEntry:
    reason, what, action = CAME_QUANTIZED
    shape = list(found.shape)
    return RestEntry(found.path, found.op, found.kind, found.weight, shape, EXPORTED, "", reason, what, action)


def _entry(weight: RestWeight, use: WeightUse, is_float: bool, stored: StoredWeight | None) -> RestEntry:
    entry = RestEntry(
        use.path, use.node.op, use.kind, weight.value.name, list(weight.shape), FLOAT if is_float else QUANTIZED,
        float_bytes=weight.bytes, bytes=weight.bytes, shares="" if use is weight.uses[0] else weight.uses[0].path,
    )  # fmt: skip
    if is_float:
        entry.reason, entry.found, entry.action = weight.refusal
        entry.is_small = weight.is_small
    elif stored is not None:
        entry.form, entry.bytes = stored.form, sum(stored.constants.values())
    return entry


def told_of_rest(left: Sequence[RestEntry]) -> Iterator[str]:
    """Yields a sentence for each reason why operators stay as they are, naming the first of them."""
    groups: dict[str, list[RestEntry]] = {}
    for entry in left:
        groups.setdefault(entry.reason, []).append(entry)
    for first, *others in groups.values():
        yield first.explanation + (f" So do {len(others)} more." if others else "")
