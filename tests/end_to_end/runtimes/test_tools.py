"""Other tools' rewrites of lowered files: the same bits, or an error that nobody can overlook.

What this would catch: a form that a tool takes for something else, or takes apart, so that it computes otherwise.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner
import onnx.version_converter
import onnxruntime as ort
import pytest

import rnnqc
from rnnqc.cells.forms import FUSED, INTEGER, ORT, QCDQ
from tests.generate.layers import RecurrentCase
from tests.runs.lowered import NATIVE, STOCK, session
from tests.runs.sessions import assert_same_bits, options, run, sqnr

LAYER = RecurrentCase(
    T=7, B=2, I=5, H=12, direction="bidirectional", lens=(7, 3), initial_h=True, initial_c=True
)  # fmt: skip
UNROLLED, WEIGHT_ONLY = "unrolled", "weight-only"
LOWERINGS: dict[str, dict[str, Any]] = {
    **{form: {"form": form} for form in (FUSED, INTEGER, QCDQ, ORT)},
    UNROLLED: {"form": INTEGER, "unroll": True},
    WEIGHT_ONLY: {"recipe": "weight-only-int8"},
}


def _optimized_offline(source: Path, target: Path) -> None:
    chosen = options("ORT_ENABLE_EXTENDED")
    chosen.optimized_model_filepath = str(target)
    ort.InferenceSession(source, chosen, providers=["CPUExecutionProvider"])


def _extracted(source: Path, target: Path) -> None:
    graph = onnx.load(source).graph
    onnx.utils.extract_model(source, target, [i.name for i in graph.input], [o.name for o in graph.output])


def _quantized_dynamically(source: Path, target: Path) -> None:
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(source, target)


def _slimmed(source: Path, target: Path) -> None:
    import onnxslim

    onnxslim.slim(str(source), str(target))


def _simplified(source: Path, target: Path) -> None:
    import onnxsim

    made, right = onnxsim.simplify(onnx.load(source))
    assert right
    onnx.save(made, target)


def _without_identities(source: Path, target: Path) -> None:
    import onnx_ir
    from onnx_ir.passes.common import IdentityEliminationPass

    made = IdentityEliminationPass()(onnx_ir.from_proto(onnx.load(source)))
    onnx.save(onnx_ir.to_proto(made.model), target)


def _folded(source: Path, target: Path) -> None:
    import onnxscript.optimizer

    onnx.save(onnxscript.optimizer.optimize(onnx.load(source)), target)


def _on_protos(rewrite: Callable[[onnx.ModelProto], onnx.ModelProto]) -> Callable[[Path, Path], None]:
    return lambda source, target: onnx.save(rewrite(onnx.load(source)), target)


TOOLS: dict[str, Callable[[Path, Path], None]] = {
    "onnxruntime, offline": _optimized_offline,
    "onnx.inliner": _on_protos(onnx.inliner.inline_local_functions),
    "onnx.shape_inference": _on_protos(onnx.shape_inference.infer_shapes),
    "onnx.version_converter": _on_protos(lambda m: onnx.version_converter.convert_version(m, 20)),
    "onnx.utils.extract_model": _extracted,
    "quantize_dynamic": _quantized_dynamically,
    "onnxslim": _slimmed,
    "onnxsim": _simplified,
    "onnx_ir": _without_identities,
    "onnxscript": _folded,
}
OPTIONAL = ("onnxslim", "onnxsim", "onnx_ir", "onnxscript")
LOST_CAPTURES = "topologically sorted"  # the tool forgets what subgraphs take from around them
REFUSED = {
    ("onnx.version_converter", FUSED): "is not a registered function/op",  # the converter drops functions
    ("onnx.utils.extract_model", INTEGER): LOST_CAPTURES,
    ("onnx.utils.extract_model", QCDQ): LOST_CAPTURES,
    **{("onnx_ir", form): "two outputs of its body" for form in (FUSED, INTEGER, QCDQ)},
}


@pytest.fixture(scope="module", params=LOWERINGS)
def lowered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    path = tmp_path_factory.mktemp("lowered") / "lowered.onnx"
    rnnqc.lower(LAYER.model(), strict=True, **LOWERINGS[request.param]).save(path)
    return request.param, path


@pytest.mark.few(1)
@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_keeps_the_bits_or_fails(tool: str, lowered: tuple[str, Path], tmp_path: Path) -> None:
    if tool in OPTIONAL and importlib.util.find_spec(tool) is None:
        pytest.skip(f"NOT TESTED: {tool} is not installed (PyPI)")
    form, source = lowered
    expected = run(session(onnx.load(source), STOCK), LAYER.feeds())

    def made() -> None:
        TOOLS[tool](source, tmp_path / "made.onnx")
        for way in (STOCK, NATIVE):
            found = run(session(onnx.load(tmp_path / "made.onnx"), way), LAYER.feeds())
            assert_same_bits(expected, found, f"{form} after {tool}, {way}")

    if (tool, form) in REFUSED:
        with pytest.raises(Exception, match=REFUSED[tool, form]):
            made()
    else:
        made()


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("lowering", "least_db"),
    [
        ({"form": INTEGER, "unroll": True, "recipe": "int8-static"}, float("inf")),
        ({"form": QCDQ}, 40.0),
        ({"form": FUSED}, None),
        ({"form": INTEGER}, None),
        ({"form": INTEGER, "unroll": True}, None),
        ({"form": ORT}, None),
    ],
)
def test_tract_computes_a_form_or_refuses_it(lowering: dict[str, Any], least_db: float | None, tmp_path: Path) -> None:
    tract = pytest.importorskip("tract", reason="NOT TESTED: tract is not installed (PyPI)")
    layer = RecurrentCase(T=7, B=2, I=5, H=12)
    feeds = layer.feeds()
    calibration = [feeds] if "recipe" in lowering else None
    lowered = rnnqc.lower(layer.model(), strict=True, calibration=calibration, **lowering).proto
    onnx.save(lowered, tmp_path / "lowered.onnx")

    def outputs() -> list[Any]:
        runnable = tract.onnx().load(str(tmp_path / "lowered.onnx")).into_model().into_runnable()
        return [o.to_numpy() for o in runnable.run([feeds[i.name] for i in lowered.graph.input])]

    if least_db is None:
        with pytest.raises(tract.TractError):
            outputs()
        return
    expected = run(session(lowered, STOCK), feeds)
    for name, value in zip((o.name for o in lowered.graph.output), outputs(), strict=True):
        assert sqnr(expected[name], value) >= least_db
