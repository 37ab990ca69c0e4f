"""The law of lowered models: however one is executed, its outputs have the same bits.

`law(model, recipe, overrides, ...)` lowers a model in every form and runs each: in stock onnxruntime, with the native
library, in integer form, unrolled; at other levels of onnxruntime's optimizations and with two threads; on several
inputs. `layer_law(case, recipe, overrides)` does so for one recurrent layer, of which it knows more: its rows may be
run apart, its sequence in chunks with carried states, its padding may hold anything, NaN is 0, infinities saturate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

import rnnqc
from tests.generate.layers import RecurrentCase
from tests.runs.lowered import (
    INTEGER,
    NATIVE,
    STOCK,
    UNROLLED,
    WAYS,
    all_nodes,
    assert_all_lowered,
    assert_equals_reference,
    session,
)
from tests.runs.sessions import Array, Outputs, assert_same_bits, run

Feeds = Mapping[str, Array]
Setting = tuple[str, int]
"""A level of onnxruntime's optimizations, and how many threads."""
ALL_SETTINGS: tuple[Setting, ...] = (
    ("ORT_DISABLE_ALL", 2),
    ("ORT_ENABLE_BASIC", 1),
    ("ORT_ENABLE_EXTENDED", 2),
    ("ORT_ENABLE_ALL", 2),
)
"""All that there are besides all optimizations in one thread, which everything is compared with; threads in turn."""
ENDS: tuple[Setting, ...] = (ALL_SETTINGS[0], ALL_SETTINGS[-1])
"""The least and the most optimizations; `tests/laws/layers.py` has layers at all settings."""
PADDINGS = (float("nan"), float("inf"), -1e30)
SPECIAL = np.array([np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-45, -1e-40, -0.0, 1e-30], np.float32)
STATES = {"initial_h": "Y_h", "initial_c": "Y_c"}
"""Which output of a chunk is which input of the next."""


@dataclass
class Forms:
    """A model lowered in every form; a session of each is made once.

    Attributes:
        results: What `lower` gave, by way of execution.
        name: For messages.
    """

    results: dict[str, rnnqc.Lowered]
    name: str
    _sessions: dict[str, ort.InferenceSession] = field(default_factory=dict)
    _expected: list[tuple[Feeds, Outputs]] = field(default_factory=list)

    @property
    def stock(self) -> rnnqc.Lowered:
        """The fused form."""
        return self.results[STOCK]

    def session(self, way: str) -> ort.InferenceSession:
        """All optimizations, one thread."""
        if way not in self._sessions:
            self._sessions[way] = session(self.results[way].proto, way)
        return self._sessions[way]

    def same_bits(self, feeds: Feeds, what: str = "") -> Outputs:
        """Runs every form on these inputs; returns what all of them give."""
        expected = run(self.session(STOCK), feeds)
        for way in self.results:
            if way != STOCK:
                assert_same_bits(expected, run(self.session(way), feeds), f"{self.name}: {way} against stock {what}")
        self._expected.append((feeds, expected))
        return expected

    def same_at(self, settings: Sequence[Setting]) -> None:
        """Runs every form again at these settings, on the inputs that it has run on."""
        for way, lowered in self.results.items():
            for level, threads in settings:
                other = session(lowered.proto, way, level, threads)
                for feeds, expected in self._expected:
                    assert_same_bits(expected, run(other, feeds), f"{self.name}: {way}, {level}, {threads} threads")

    def reference(self, feeds: Feeds) -> int:
        """Compares the fused cells of the main graph with the numpy reference; returns how many there are."""
        return assert_equals_reference(self.stock.proto, feeds)


def law(
    model: onnx.ModelProto,
    recipe: str = "int8",
    overrides: Sequence[str] = (),
    *,
    feeds: Sequence[Feeds],
    dims: Mapping[str, int] | None = None,
    settings: Sequence[Setting] = ENDS,
    ways: Sequence[str] = WAYS,
    name: str = "",
    **arguments: Any,
) -> Forms:
    """Fails unless every form of a model is fully lowered and gives the same bits.

    Args:
        model: The float model.
        recipe: Of the lowering.
        overrides: Of the lowering.
        feeds: Inputs to run on.
        dims: Bind the sequence length, for the unrolled form.
        settings: Besides all optimizations and one thread, which are always tried.
        ways: Which ways of execution; stock and native are always among them.
        name: For messages.
        arguments: Of `rnnqc.lower`.

    Returns:
        The forms, for what a test has to say besides.
    """
    arguments |= {"recipe": recipe, "overrides": overrides}
    fused = rnnqc.lower(model, form="fused", **arguments)
    forms = Forms({STOCK: fused, NATIVE: fused}, name or recipe)
    for way in (w for w in (INTEGER, UNROLLED) if w in ways):
        bound: dict[str, Any] = {"unroll": True, "dims": dict(dims or {})} if way == UNROLLED else {}
        forms.results[way] = rnnqc.lower(model, form="integer", **bound, **arguments)
    for way, lowered in forms.results.items():
        assert_all_lowered(lowered, f"{forms.name}: {way}")
        wanted = "integer" if way in (INTEGER, UNROLLED) else "fused"
        assert {c.form for c in lowered.model.cells.values()} == {wanted}, f"{forms.name}: {way}"
    for given in feeds:
        forms.same_bits(given)
    forms.same_at(settings)
    return forms


def layer_law(
    case: RecurrentCase,
    recipe: str = "int8",
    overrides: Sequence[str] = (),
    *,
    settings: Sequence[Setting] = ENDS,
    ways: Sequence[str] = WAYS,
    name: str = "",
    **arguments: Any,
) -> Forms:
    """The law for one layer: also its rows, chunks, padding and special values, and the numpy reference.

    Args:
        case: The layer; what does not apply to it (a batch of fixed size, no states in and out) is left out.
        recipe: Of the lowering.
        overrides: Of the lowering.
        settings: As of `law`.
        ways: As of `law`.
        name: For messages.
        arguments: Of `rnnqc.lower`.
    """
    name = name or f"{recipe}, {case}"
    feeds = [case.feeds(padding=0.0)]
    if case.placement == "if":
        feeds.append(case.feeds(padding=0.0, condition=False))
    feeds.append(special(case, feeds[0]))
    arguments |= {"settings": settings, "ways": ways, "name": name}
    forms = law(case.model(), recipe, overrides, feeds=feeds, dims=case.dims, **arguments)
    plain = run(forms.session(STOCK), feeds[0])
    wanted = case.expected(feeds[0])
    assert {k: v.shape for k, v in plain.items()} == {k: v.shape for k, v in wanted.items()}, name
    for value in plain.values():
        assert np.isfinite(value).all(), name
    _special_values(forms, feeds[-1])
    if case.lens is not None:
        for padding in PADDINGS:
            _compare(forms, plain, case.feeds(padding=padding), f"padding {padding}")
    if case.placement in ("main", "function") and case.dynamic_batch and case.states_from != "computed":
        rows(
            forms, case, feeds[0]
        )  # onnxruntime's float products, of which states may be computed, depend on the batch
    if case.placement == "main":
        assert forms.reference(feeds[0]) == forms.reference(feeds[-1]) == case.directions, name
        if carries_states(case):
            chunks(forms, case, feeds[0])
    if case.placement not in ("loop", "scan") and UNROLLED in ways:
        assert not [n.name for n in all_nodes(forms.results[UNROLLED].proto) if n.op_type in ("Loop", "Scan")], name
    return forms


def _compare(forms: Forms, expected: Outputs, feeds: Feeds, what: str) -> None:
    for way in forms.results:
        assert_same_bits(expected, run(forms.session(way), feeds), f"{forms.name}: {way}, {what}")


def special(case: RecurrentCase, feeds: Feeds) -> dict[str, Array]:
    """The inputs with NaN, infinities, extremes, denormals and signed zeros in X and states."""
    rng = np.random.default_rng([case.seed, 5])
    return {
        k: np.where(rng.random(v.shape) < 0.3, rng.choice(SPECIAL, v.shape), v) if k in ("X", *STATES) else v
        for k, v in feeds.items()
    }


def _special_values(forms: Forms, feeds: Feeds) -> None:
    """NaN counts as 0, and outputs have no NaN."""
    found = run(forms.session(STOCK), feeds)
    without = {k: np.where(np.isnan(v), np.float32(0), v) if v.dtype == np.float32 else v for k, v in feeds.items()}
    assert_same_bits(found, run(forms.session(STOCK), without), f"{forms.name}: with 0 for NaN")
    assert not [k for k, v in found.items() if np.isnan(v).any()], forms.name


def _batch_axis(name: str, case: RecurrentCase) -> int:
    if case.layout or name in ("sequence_lens", "features"):
        return 0
    return 2 if name == "Y" else 1


def _row(values: Feeds, row: int, case: RecurrentCase) -> dict[str, Array]:
    return {k: np.ascontiguousarray(np.take(v, [row], _batch_axis(k, case))) for k, v in values.items()}


def rows(forms: Forms, case: RecurrentCase, feeds: Feeds) -> None:
    """Each row of a batch has the same results alone as among others."""
    together = run(forms.session(STOCK), feeds)
    for way in forms.results:
        for row in range(case.B):
            alone = run(forms.session(way), _row(feeds, row, case))
            assert_same_bits(_row(together, row, case), alone, f"{forms.name}: {way}, row {row}")


def assert_on_grids(lowered: rnnqc.Lowered) -> None:
    """Fails unless all cells have the arithmetic of static formats."""
    nodes = [n for n in all_nodes(lowered.proto) if n.op_type.startswith("Quant") and n.domain == "ai.rnnqc"]
    assert nodes
    for node in nodes:
        assert {a.s for a in node.attribute if a.name == "arithmetic"} in ({b"grid"}, {b"grid32"}), node.name


def carries_states(case: RecurrentCase) -> bool:
    """Whether the final states of one chunk of the sequence can be the initial states of the next."""
    wanted = {"initial_h": "Y_h"} if case.op != "LSTM" else STATES
    return (
        case.dynamic_time
        and case.lens is None
        and case.directions == 1
        and case.layout == 0
        and case.states_from == "input"
        and set(case.states) == wanted.keys()
        and {"Y", *wanted.values()} <= set(case.outputs)
    )


def chunks(forms: Forms, case: RecurrentCase, feeds: Feeds, starts: Sequence[int] | None = None) -> None:
    """A sequence in chunks with carried states has the same results as the whole."""
    starts = [k for k in (0, 1, 4) if k < case.T] if starts is None else starts
    whole = run(forms.session(STOCK), feeds)
    carried = {i: o for i, o in STATES.items() if o in whole}
    for way in (w for w in forms.results if w != UNROLLED):
        state, pieces, got = dict(feeds), {}, {}
        ends = [*starts[1:], case.T]
        for start, stop in sorted(zip(starts, ends, strict=True), reverse=case.direction == "reverse"):
            got = run(forms.session(way), state | {"X": feeds["X"][start:stop]})
            state |= {i: got[o] for i, o in carried.items()}
            pieces[start] = got["Y"]
        joined = {"Y": np.concatenate([pieces[k] for k in starts]), **{o: got[o] for o in carried.values()}}
        assert_same_bits(whole, {k: joined[k] for k in whole}, f"{forms.name}: {way}, chunks from {list(starts)}")
