"""Two lowered models in one: by hand, and by onnx.compose with prefixes; stock and native give what each gives alone.

What these would catch: function bodies that a join mixes up, and names that no native kernel answers to.
"""

from __future__ import annotations

from typing import Any

import onnx
import onnx.compose
import onnxruntime as ort
import pytest

import rnnqc
from rnnqc.cells.linear_nodes import KINDS, LinearKind
from rnnqc.cells.types import CELL_TYPES, LSTM, fused_type
from tests.generate.layers import RecurrentCase
from tests.native.quant_linear_cases import linear_case
from tests.runs.lowered import NATIVE, STOCK, all_nodes, run_both, session
from tests.runs.sessions import Outputs, assert_same_bits, run

FIRST = RecurrentCase(T=3, B=2, I=3, H=4)
# The pairs differ in hidden size, direction, states, operator; in the last one the bodies are equal.
SECONDS = {
    "another size": FIRST.replace(H=6, seed=1),
    "another direction": FIRST.replace(direction="reverse", seed=1),
    "states": FIRST.replace(initial_h=True, initial_c=True, seed=1),
    "another operator": FIRST.replace(op="GRU", seed=1),
    "the same configuration": FIRST.replace(seed=1),
}
any_second = pytest.mark.parametrize("second", SECONDS.values(), ids=SECONDS)


def _lowered(case: RecurrentCase, prefix: str, functions: bool = True) -> onnx.ModelProto:
    model = rnnqc.lower(case.model()).proto
    return onnx.compose.add_prefix(model, prefix, rename_functions=functions)


def _alone(case: RecurrentCase, prefix: str) -> Outputs:
    return {prefix + n: v for n, v in run(session(rnnqc.lower(case.model()).proto, STOCK), case.feeds()).items()}


def _assert_right(joined: onnx.ModelProto, cases: dict[str, RecurrentCase]) -> None:
    onnx.checker.check_model(joined)
    expected: Outputs = {}
    feeds: Outputs = {}
    for prefix, case in cases.items():
        expected |= _alone(case, prefix)
        feeds |= {prefix + n: v for n, v in case.feeds().items()}
    assert_same_bits(expected, run_both(joined, feeds), "joined")


def _by_hand(first: onnx.ModelProto, second: onnx.ModelProto) -> onnx.ModelProto:
    """One graph with the nodes of both, and of functions with one name the first."""
    joined = onnx.ModelProto()
    joined.CopyFrom(first)
    for field in ("node", "initializer", "input", "output"):
        getattr(joined.graph, field).extend(getattr(second.graph, field))
    held = {(f.domain, f.name) for f in first.functions}
    joined.functions.extend(f for f in second.functions if (f.domain, f.name) not in held)
    return joined


@pytest.mark.few(1)
@any_second
def test_functions_merged_by_name(second: RecurrentCase) -> None:
    joined = _by_hand(_lowered(FIRST, "a/", functions=False), _lowered(second, "b/", functions=False))
    _assert_right(joined, {"a/": FIRST, "b/": second})


@pytest.mark.few(1)
@any_second
def test_merged_with_prefixes(second: RecurrentCase) -> None:
    """Merged models as they are, and after restoring their kernels."""
    first, other = rnnqc.lower(FIRST.model()).proto, rnnqc.lower(second.model()).proto
    for model in (first, other):
        del model.metadata_props[:]  # onnx merges models whose metadata agree
    joined = onnx.compose.merge_models(first, other, io_map=[], prefix1="a/", prefix2="b/")
    _assert_right(joined, {"a/": FIRST, "b/": second})
    named = rnnqc.name_functions(joined)
    _assert_right(named, {"a/": FIRST, "b/": second})
    with_kernel = {t.fused_name(k) for t in CELL_TYPES.values() for k in range(t.aliases)}
    cells = [n.op_type for n in all_nodes(named) if fused_type(n.op_type)]
    assert len(cells) == 2 and set(cells) <= with_kernel
    assert len(set(cells)) == (1 if second == SECONDS["the same configuration"] else 2)


FORMS: dict[str, dict[str, Any]] = {
    "fused": {},
    "integer": {"form": "integer"},
    "qcdq": {"form": "qcdq"},
    "unrolled": {"form": "integer", "unroll": True},
    "ort": {"form": "ort"},
    "weights": {"recipe": "weight-only-int8"},
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_join_as_the_page_says(form: str) -> None:
    """In every form the float models first; onnx loses what the bodies of Scans read where they are joined later."""
    cases = {"a/": FIRST, "b/": SECONDS["another size"]}
    alone = {p: rnnqc.lower(c.model(), **FORMS[form]).proto for p, c in cases.items()}
    expected = {p + n: v for p, c in cases.items() for n, v in run(session(alone[p], STOCK), c.feeds()).items()}
    feeds = {p + n: v for p, c in cases.items() for n, v in c.feeds().items()}
    prefixes = {"io_map": [], "prefix1": "a/", "prefix2": "b/"}
    joined = onnx.compose.merge_models(*(c.model() for c in cases.values()), **prefixes)
    assert_same_bits(expected, run(session(rnnqc.lower(joined, **FORMS[form]).proto, STOCK), feeds), "before")
    for model in alone.values():
        del model.metadata_props[:]
    if form in ("integer", "qcdq"):
        with pytest.raises(onnx.checker.ValidationError, match="topologically sorted"):
            onnx.compose.merge_models(*alone.values(), **prefixes)
        return
    assert_same_bits(
        expected, run(session(onnx.compose.merge_models(*alone.values(), **prefixes), STOCK), feeds), "after"
    )


def test_merge_without_prefixes_is_refused_by_onnx() -> None:
    models = [rnnqc.lower(c.model()).proto for c in (FIRST, SECONDS["another size"])]
    with pytest.raises(ValueError, match="overlapping"):
        onnx.compose.merge_models(*models, io_map=[])


def test_a_lost_body_fails_when_the_session_is_created() -> None:
    """Two bodies under one name, as two of more configurations than there are names may be: one is lost in a join."""
    first, second = _lowered(FIRST, "a/", False), _lowered(SECONDS["another direction"], "b/", False)
    name = next(f.name for f in first.functions if fused_type(f.name))
    for node in second.graph.node:
        node.op_type = name if fused_type(node.op_type) else node.op_type
    for function in second.functions:
        function.name = name if fused_type(function.name) else function.name
    joined = _by_hand(first, second)
    with pytest.raises(Exception, match="two_lowered_models_have_different_functions"):
        ort.InferenceSession(joined.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"a/X": FIRST.feeds()["X"], "b/X": SECONDS["another direction"].feeds()["X"]}
    expected = _alone(FIRST, "a/") | _alone(SECONDS["another direction"], "b/")
    assert_same_bits(expected, run(session(joined, NATIVE), feeds), "native, where nodes say all")
    with pytest.raises(rnnqc.CompileError, match="2 configurations"):
        rnnqc.name_functions(joined)
    # What a user meets says what to do, and that works.
    with pytest.raises(rnnqc.CompileError, match=r"all but one are lost.*a prefix of its own that functions get, too"):
        rnnqc.session(joined, native=False)


def test_the_way_out_opens_in_a_session_of_rnnqc() -> None:
    """Functions with a prefix are no functions of the model's own in rnnqc's domain."""
    first, second = _lowered(FIRST, "a_", True), _lowered(SECONDS["another direction"], "b_", True)
    joined = _by_hand(first, second)
    del joined.metadata_props[:]
    feeds = {"a_X": FIRST.feeds()["X"], "b_X": SECONDS["another direction"].feeds()["X"]}
    expected = _alone(FIRST, "a_") | _alone(SECONDS["another direction"], "b_")
    for proto in (joined, rnnqc.name_functions(joined)):
        for native in (False, True):
            assert_same_bits(expected, run(rnnqc.session(proto, native=native), feeds), f"native {native}")


@pytest.mark.slow
def test_more_configurations_than_names() -> None:
    """Configurations beyond the number of names run in standard operators, even in a native session."""
    model = _many(LSTM.aliases + 2)
    result = rnnqc.lower(model)
    lowered = result.proto
    (warning,) = (w for w in result.report.warnings if "standard operators" in w)
    for text in ("2 cell(s)", f"{LSTM.aliases} operators", f"{LSTM.aliases + 2} configurations", "p0/"):
        assert (text in warning) is (text != "p0/"), warning
    names = {f.name for f in lowered.functions if fused_type(f.name)}
    assert len(names) == LSTM.aliases + 2
    assert {LSTM.fused_name(k) for k in range(LSTM.aliases)} < names
    feeds = FIRST.feeds()
    run_both(lowered, feeds)


def _many(count: int) -> onnx.ModelProto:
    """Layers of different sizes on one input."""
    result = FIRST.replace(outputs=("Y_h",)).model()
    del result.graph.node[:], result.graph.initializer[:], result.graph.output[:]
    for k in range(count):
        part = FIRST.replace(outputs=("Y_h",), H=k + 1).model()
        prefixed = onnx.compose.add_prefix(part, f"p{k}/", rename_inputs=False)
        for field in ("node", "initializer", "output"):
            getattr(result.graph, field).extend(getattr(prefixed.graph, field))
    return result


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_linear_layers(kind: LinearKind) -> None:
    """Of other sizes, with one function for both; a prefix on it takes the kernel away until functions are named."""
    cases = {"a/": linear_case((3,), 40, 21, kind=kind), "b/": linear_case((2,), 33, 50, kind=kind)}
    feeds = {f"{prefix}X": case.inputs["X"] for prefix, case in cases.items()}
    expected = {f"{prefix}Y": case.expected()["Y"] for prefix, case in cases.items()}
    for rename in (False, True):
        parts = [
            onnx.compose.add_prefix(case.model(function=True), prefix, rename_functions=rename)
            for prefix, case in cases.items()
        ]
        joined = _by_hand(*parts)
        named = rnnqc.name_functions(joined)
        assert [f.name for f in named.functions] == [kind.name]
        assert {n.op_type for n in named.graph.node} == {kind.name}
        for model in (joined, named):
            assert_same_bits(expected, run_both(model, feeds), f"renamed: {rename}")
