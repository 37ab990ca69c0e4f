"""Sessions for lowered models.

What these would catch: options that are ignored, the library registered where stock execution was asked for.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import warnings
from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import rnnqc
from rnnqc.errors import CompileError
from rnnqc.sessions.opening import _SMALLEST
from tests.generate.layers import RecurrentCase
from tests.passes.pass_testing import plain_op
from tests.runs.commands import in_process
from tests.runs.sessions import assert_same_bits, options, run
from tests.subjects.protos import of_nodes, parse

CASE = RecurrentCase()


@pytest.fixture(scope="module")
def lowered() -> rnnqc.Lowered:
    return rnnqc.lower(CASE.model())


@pytest.mark.parametrize("native", [True, False])
def test_proto_and_path(native: bool, lowered: rnnqc.Lowered, tmp_path: Path) -> None:
    lowered.save(tmp_path / "m.onnx")
    outputs = [
        run(rnnqc.session(m, native=native), CASE.feeds())
        for m in (lowered.proto, tmp_path / "m.onnx", str(tmp_path / "m.onnx"))
    ]
    assert_same_bits(outputs[0], outputs[1], "path")
    assert_same_bits(outputs[0], outputs[2], "text")


def test_options_are_used(lowered: rnnqc.Lowered, tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    session = rnnqc.session(lowered.proto, native=False, options=options)
    assert (tmp_path / "optimized.onnx").exists()
    assert session.get_providers() == ["CPUExecutionProvider"]


@pytest.mark.parametrize("native", [True, False])
def test_native_session_takes_the_kernel(native: bool, lowered: rnnqc.Lowered, tmp_path: Path) -> None:
    """Otherwise "native" would compare stock with stock."""
    chosen = options()
    chosen.enable_profiling = True
    chosen.profile_file_prefix = str(tmp_path / "profile")
    running = rnnqc.session(lowered.proto, native=native, options=chosen)
    run(running, CASE.feeds())
    events = json.loads(Path(running.end_profiling()).read_text())
    executed = {plain_op(event["args"]["op_name"]) for event in events if "op_name" in event.get("args", {})}
    assert ("QuantLSTMCell" in executed) == native, executed


def _without_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model that runs only with the library."""
    bare = deepcopy(model)
    kept = [f for f in model.functions if not f.name.startswith("Quant")]
    del bare.functions[:]
    bare.functions.extend(kept)
    return bare


def test_options_stay_as_they_are_and_serve_again(lowered: rnnqc.Lowered, tmp_path: Path) -> None:
    """Would catch the library in the caller's options: the second session from them failed."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_free_dimension_override_by_name("T", 5)
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    bare = _without_functions(lowered.proto)
    outputs = []
    for _ in range(2):
        session = rnnqc.session(bare, options=options)
        own = session.get_session_options()
        assert own.intra_op_num_threads == 1
        assert own.get_session_config_entry("session.intra_op.allow_spinning") == "0"
        outputs.append(run(session, CASE.feeds()))
    assert_same_bits(*outputs, "two sessions")
    assert onnx.load(tmp_path / "optimized.onnx").graph.input[0].name == bare.graph.input[0].name
    assert options.optimized_model_filepath == str(tmp_path / "optimized.onnx")
    with pytest.raises(Exception, match="not a registered function/op"):
        ort.InferenceSession(bare.SerializeToString(), options)


def test_options_with_the_library(lowered: rnnqc.Lowered) -> None:
    """Whoever has registered it already may ask for it again."""
    options = ort.SessionOptions()
    for _ in range(2):
        rnnqc.runtime_ops.register(options)
        rnnqc.session(_without_functions(lowered.proto), options=options)
    ort.InferenceSession(_without_functions(lowered.proto).SerializeToString(), options)


def test_options_with_another_library(lowered: rnnqc.Lowered, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of options has no libraries: if the model needs one of the caller's, the original options are used."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(str(rnnqc.runtime_ops.library_path()))  # stands for another one
    asked = []
    monkeypatch.setattr(rnnqc.runtime_ops, "register", lambda chosen, _operators=None: asked.append(chosen))
    session = rnnqc.session(_without_functions(lowered.proto), options=options)
    assert np.isfinite(run(session, CASE.feeds())["Y"]).all()
    assert asked[0] is not options and asked[1] is options
    nothing = ort.SessionOptions()
    nothing.log_severity_level = 4
    with pytest.raises(CompileError, match="not a registered function/op"):
        rnnqc.session(_without_functions(lowered.proto), options=nothing)
    assert asked[3:] == []


def test_arguments_are_passed_on(lowered: rnnqc.Lowered) -> None:
    session = rnnqc.session(lowered.proto, native=False, providers=["CPUExecutionProvider"], provider_options=[{}])
    assert np.isfinite(run(session, CASE.feeds())["Y"]).all()


def test_refused_model_is_named(tmp_path: Path) -> None:
    bad = parse('<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Mystery(x) }')
    with pytest.raises(CompileError, match=r"onnxruntime [\d.]+ refuses the model: "):
        rnnqc.session(bad)
    (tmp_path / "bad.onnx").write_bytes(bad.SerializeToString())
    with pytest.raises(CompileError, match=r"refuses .*bad\.onnx: "):
        rnnqc.session(tmp_path / "bad.onnx")


def test_layers_with_the_batch_in_front_run() -> None:
    """onnxruntime has no kernel for layout 1."""
    case = RecurrentCase(T=4, B=3, I=5, H=6, layout=1)
    with pytest.raises(Exception, match="layout_ == 0"):
        ort.InferenceSession(case.model().SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = case.feeds()
    wanted, session = case.expected(feeds), rnnqc.session(case.model())
    assert set(wanted) >= {o.name for o in session.get_outputs()}
    for name, value in run(session, feeds).items():
        np.testing.assert_allclose(value, wanted[name], atol=1e-5)


def test_missing_library(monkeypatch: pytest.MonkeyPatch, lowered: rnnqc.Lowered) -> None:
    def absent(*_: object) -> None:
        raise OSError("the native library is not there")

    monkeypatch.setattr(rnnqc.runtime_ops, "register", absent)
    with pytest.raises(CompileError, match=r"the native library is not there.*run, evaluate and dump: "):
        rnnqc.session(lowered.proto)
    rnnqc.session(lowered.proto, native=False)


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("attribute", ["value", "value_ints"])
def test_axes_of_every_kind_of_constant(attribute: str, axis: int) -> None:
    """Would catch a good model that is refused, or a wrong Squeeze that is not seen, for how its axes are written."""
    rng = np.random.default_rng(0)
    w, r = (rng.standard_normal((1, 16, n)).astype(np.float32) for n in (3, 4))
    held = onnx.numpy_helper.from_array(np.array([axis])) if attribute == "value" else [axis]
    nodes = [
        onnx.helper.make_node("Constant", [], ["axes"], **{attribute: held}),
        onnx.helper.make_node("LSTM", ["X", "W", "R"], ["Y"], hidden_size=4),
        onnx.helper.make_node("Squeeze", ["Y", "axes"], ["Z"]),
    ]
    model = of_nodes(nodes, {"X": ["T", "B", 3]}, {"Z": None}, {"W": w, "R": r})
    made = rnnqc.session(model, native=False)
    assert made.run(None, {"X": np.zeros((5, 2, 3), np.float32)})[0].shape == (5, 2, 4)


LOST = """<ir_version: 8, opset_import: ["": 17]> g (float[B,4] x) => (float[B,4] y, float[2,3] z) {
    y = Tanh (x)
    z = Constant <value = float[2,3] {0.0, 0.0, 0.0, 0.0, 0.0, 0.0}> ()
}"""


def test_a_model_that_lost_a_layer_is_no_silent_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It runs, and gives the same whatever it is fed."""
    onnx.save(parse(LOST), tmp_path / "lost.onnx")
    for model in (parse(LOST), tmp_path / "lost.onnx"):
        with pytest.warns(UserWarning, match=r"no input has an influence on output 'z'; .*dynamo=False"):
            rnnqc.session(model)
    np.savez(tmp_path / "in.npz", x=np.ones((1, 4), np.float32))
    ran = in_process(capfd, "run", tmp_path / "lost.onnx", "-i", tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert ran.code == 0, ran.text
    assert "rnnqc: no input has an influence on output 'z'" in ran.err
    assert "y: float32 [1, 4]" in ran.out


def test_no_warning_of_other_models(lowered: rnnqc.Lowered) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rnnqc.session(CASE.model())
        rnnqc.session(lowered.proto)


def test_a_session_has_the_operators_of_its_model(lowered: rnnqc.Lowered) -> None:
    """Every operator of the library takes time in every session; without its own a model runs, in its functions."""
    (needed,) = {
        n.op_type for n in lowered.proto.graph.node if n.domain == "ai.rnnqc" and n.op_type.startswith("Quant")
    }
    bare, expected = _without_functions(lowered.proto), run(rnnqc.session(lowered.proto, native=False), CASE.feeds())
    own = rnnqc.session(bare).get_session_options().get_session_config_entry("rnnqc.operators")
    assert needed in own.split(";") and "Rearrange_00" not in own
    others = [{needed}, {needed, "Rearrange_00", "of another release"}, {"Rearrange_00"}, set(), None]
    for chosen in others:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        rnnqc.runtime_ops.register(options, chosen)
        found = run(ort.InferenceSession(lowered.proto.SerializeToString(), options), CASE.feeds())
        assert_same_bits(found, expected, str(chosen))
        if chosen is None or needed in chosen:
            ort.InferenceSession(bare.SerializeToString(), options)
        else:
            with pytest.raises(Exception, match="not a registered function/op"):
                ort.InferenceSession(bare.SerializeToString(), options)


def test_the_runtime_package_in_the_same_process() -> None:
    """`rnnqc_runtime` is a second copy of `rnnqc.runtime_ops`; options that both got would open no session."""
    folder = Path(rnnqc.runtime_ops.__file__ or "").parent
    spec = importlib.util.spec_from_file_location(
        "rnnqc_runtime", folder / "__init__.py", submodule_search_locations=list(rnnqc.runtime_ops.__path__)
    )
    assert spec is not None and spec.loader is not None
    runtime = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runtime)
    assert runtime is not rnnqc.runtime_ops
    proto = rnnqc.lower(Path(__file__).resolve().parents[1] / "models" / "digits_lstm.onnx").proto
    options = ort.SessionOptions()
    runtime.register(options)
    rnnqc.runtime_ops.register(options)
    feed = {"x": np.ones((2, 8, 8), np.float32)}
    results = [ort.InferenceSession(proto.SerializeToString(), options).run(None, feed)[0]]
    results += [rnnqc.session(proto, options=o).run(None, feed)[0] for o in (options, None, options)]
    assert len({np.asarray(r).tobytes() for r in results}) == 1


def test_a_lowered_file_is_opened_without_the_compiler(lowered: rnnqc.Lowered, tmp_path: Path) -> None:
    """Loading it takes ten times as long as loading onnxruntime."""
    lowered.save(tmp_path / "m.onnx")
    program = (
        "import sys, onnxruntime, rnnqc\n"
        "for options in (None, onnxruntime.SessionOptions()):\n"
        "    made = rnnqc.session(sys.argv[1], options=options)\n"
        "    print(made.get_session_options().get_session_config_entry('rnnqc.operators'))\n"
        "heavy = ('onnx', 'onnx_graphsurgeon', 'rnnqc.ir', 'rnnqc.passes')\n"
        "print([m for m in heavy if m in sys.modules])\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "m.onnx")]
    *operators, heavy = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert heavy == "[]"
    assert operators == [";".join(sorted(f.name for f in lowered.proto.functions))] * 2


def test_a_file_whose_bodies_are_removed(lowered: rnnqc.Lowered, tmp_path: Path) -> None:
    """It names no operators, and gets all of them."""
    onnx.save(_without_functions(lowered.proto), tmp_path / "bare.onnx")
    assert rnnqc.runtime_ops.operators_of(tmp_path / "bare.onnx") == set()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    found = run(rnnqc.session(tmp_path / "bare.onnx", options=options), CASE.feeds())
    assert_same_bits(found, run(rnnqc.session(lowered.proto), CASE.feeds()), "without bodies")


def test_own_functions_in_a_file_are_refused(lowered: rnnqc.Lowered, tmp_path: Path) -> None:
    """Even if the file says that it has lowered cells somewhere."""
    model = CASE.model()
    node = onnx.helper.make_node("Neg", ["a"], ["b"], doc_string="rnnqc.cells")
    imports = [onnx.helper.make_opsetid("", 17)]
    model.functions.append(onnx.helper.make_function("ai.rnnqc", "Twice", ["a"], ["b"], [node], imports))
    model.ir_version = max(model.ir_version, 8)
    onnx.save(model, tmp_path / "own.onnx")
    with pytest.raises(CompileError, match="is not one of rnnqc's"):
        rnnqc.session(tmp_path / "own.onnx")


def test_the_smallest_model() -> None:
    proto = onnx.load_from_string(_SMALLEST)
    onnx.checker.check_model(proto, full_check=True)
    assert [n.op_type for n in proto.graph.node] == ["Identity"]


def test_operators_of_a_file(tmp_path: Path) -> None:
    """Would catch functions of another domain, a field that is skipped wrongly, files that are no models."""
    names = {"QuantLSTMCell_03", "Rearrange_12"}
    model = CASE.model()
    for domain, called in (("ai.rnnqc", names), ("else", {"Other"})):
        for name in called:
            node = onnx.helper.make_node("Neg", ["a"], ["b"])
            imports = [onnx.helper.make_opsetid("", 17)]
            model.functions.append(onnx.helper.make_function(domain, name, ["a"], ["b"], [node], imports))
    model.model_version = 2**63 - 1
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    assert rnnqc.runtime_ops.operators_of(path) == names
    whole = path.read_bytes()
    for wrong in (whole[:-3], b"\x0f\x00", b"\x0a", b"\xff" * 20, b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"):
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match="not an ONNX model: "):
            rnnqc.runtime_ops.operators_of(path)
    path.write_bytes(b"")
    assert rnnqc.runtime_ops.operators_of(path) == set()
    with pytest.raises(FileNotFoundError):
        rnnqc.runtime_ops.operators_of(tmp_path / "none.onnx")
