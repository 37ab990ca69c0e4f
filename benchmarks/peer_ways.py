"""The ways to run one LSTM layer that peers.py compares: X, h0, c0 to Y, Y_h, Y_c, all float32.

    python benchmarks/peer_ways.py WAY THREADS      speaks the protocol of turns.py: prepare TxBxIxH, burst SECONDS

Each way builds a function that runs a layer, and names its version; its Y is compared with onnxruntime's float LSTM.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from support.layers import Array, Layer
from support.turns import Reply, Worker, WorkerError, compiled

import rnnqc
from rnnqc import runtime_ops
from rnnqc.evaluation.numerics import sqnr_db
from rnnqc.timing import burst, session_options

Run = Callable[[], object]
Built = tuple[Run, Callable[[], Array]]
"""A function that runs the layer once, and one that returns the Y of the last run."""


class Way:
    """One way; `build` may be called for several layers in turn."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._run: Run = lambda: None

    @property
    def version(self) -> str:
        """The version of the software that runs."""
        return f"onnxruntime {ort.__version__}"

    def build(self, layer: Layer) -> Built:
        """Builds the functions that run the layer.

        Raises:
            RuntimeError: The layer would not run as the way's name says.
        """
        raise NotImplementedError

    def prepare(self, layer: Layer) -> float | None:
        """Runs the layer once; returns the SQNR of its Y."""
        self._run, result = self.build(layer)
        self._run()
        return quality(layer, result())

    def burst(self, seconds: float) -> Reply:
        """Runs the layer repeatedly for `seconds`."""
        times = burst(self._run, seconds)
        return {"runs": len(times), "min": min(times), "median": statistics.median(times)}


class Ort(Way):
    """A model in onnxruntime through its C API (ort_lstm.cc), with inputs and outputs bound in advance."""

    native = False

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self._worker: Worker | None = None
        self._folder = tempfile.TemporaryDirectory()

    def model(self, layer: Layer) -> onnx.ModelProto:
        """Returns the model to run."""
        return layer.model()

    @property
    def worker(self) -> Worker:
        """The process that runs the model; stopped except during its turns.

        Raises:
            WorkerError: There is no compiler, or no library of onnxruntime.
        """
        if self._worker is None:
            program = compiled("ort_lstm.cc", ["-ldl"])
            runtime = sorted((Path(ort.__file__).parent / "capi").glob("libonnxruntime.so*"))
            if not runtime:
                raise WorkerError("onnxruntime's wheel has no libonnxruntime.so")
            library = [runtime_ops.library_path()] if self.native else []
            self._worker = Worker("ort", [program, str(self.threads), self._folder.name, runtime[0], *library])
            self._worker.receive()
        return self._worker

    def prepare(self, layer: Layer) -> float | None:
        """See `Way`."""
        folder = Path(self._folder.name)
        write_feeds(layer, folder)
        onnx.save(self.model(layer), folder / "model.onnx")
        self.worker.ask(f"prepare {layer.name}")
        return quality(layer, np.fromfile(folder / "y.f32", np.float32))

    def burst(self, seconds: float) -> Reply:
        """See `Way`."""
        return self.worker.burst(seconds)


class Identity(Ort):
    """A model that does nothing, to measure the overhead of a call."""

    def model(self, layer: Layer) -> onnx.ModelProto:
        """Returns a model that copies the states."""
        state, value = [1, layer.B, layer.H], onnx.helper.make_tensor_value_info
        inputs = [value("X", 1, [layer.T, layer.B, layer.I]), value("h0", 1, state), value("c0", 1, state)]
        outputs = [value("Y", 1, [1, *state]), value("Y_h", 1, state), value("Y_c", 1, state)]
        node = onnx.helper.make_node
        nodes = [node("Unsqueeze", ["h0", "axis"], ["Y"]), node("Identity", ["h0"], ["Y_h"])]
        nodes.append(node("Identity", ["c0"], ["Y_c"]))
        axis = onnx.numpy_helper.from_array(np.zeros(1, np.int64), "axis")
        graph = onnx.helper.make_graph(nodes, "identity", inputs, outputs, [axis])
        return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)

    def prepare(self, layer: Layer) -> float | None:
        """Prepares one step, whatever the length of the layer."""
        super().prepare(replace(layer, T=1))
        return None


class Rnnqc(Ort):
    """The default recipe; with the native library unless stock."""

    def __init__(self, threads: int, native: bool = True, overrides: tuple[str, ...] = ()) -> None:
        super().__init__(threads)
        self.native, self._overrides = native, overrides

    @property
    def version(self) -> str:
        """The kernels of the native library."""
        return f"rnnqc {rnnqc.__version__}" + (f" {runtime_ops.isa()}" if self.native else "")

    def model(self, layer: Layer) -> onnx.ModelProto:
        """Returns the lowered layer."""
        return rnnqc.lower(layer.model(), overrides=self._overrides).proto


class DynamicQuantizeLstm(Ort):
    """The result of onnxruntime's quantize_dynamic."""

    def __init__(self, threads: int, per_channel: bool) -> None:
        super().__init__(threads)
        self._per_channel = per_channel

    def model(self, layer: Layer) -> onnx.ModelProto:
        """Returns the model with a DynamicQuantizeLSTM node."""
        from onnxruntime.quantization import QuantType, quantize_dynamic

        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder) / "float.onnx", Path(folder) / "dynamic.onnx"
            onnx.save(layer.model(), source)
            quantize_dynamic(
                source, target, op_types_to_quantize=["LSTM"], per_channel=self._per_channel,
                weight_type=QuantType.QInt8,
            )  # fmt: skip
            model = onnx.load(target)
        if [n.op_type for n in model.graph.node].count("DynamicQuantizeLSTM") != 1:
            raise RuntimeError("quantize_dynamic made no DynamicQuantizeLSTM")
        return model


class Torch(Way):
    """torch.nn.LSTM, or its dynamic quantization by torch.ao."""

    def __init__(self, threads: int, quantized: bool) -> None:
        super().__init__(threads)
        import torch

        self._torch, self._quantized = torch, quantized
        torch.set_num_threads(threads)

    @property
    def version(self) -> str:
        """The version of the package."""
        engine = f", {self._torch.backends.quantized.engine}" if self._quantized else ""
        return f"torch {self._torch.__version__}{engine}"

    def build(self, layer: Layer) -> Built:
        """See `Way`."""
        torch = self._torch
        lstm = torch.nn.LSTM(layer.I, layer.H, bias=self._quantized)  # quantized layers require a bias
        with torch.no_grad():
            for parameter in lstm.parameters():
                parameter.zero_()
            for parameter, name in ((lstm.weight_ih_l0, "W0"), (lstm.weight_hh_l0, "R0")):
                parameter.copy_(torch.from_numpy(_gates(_weights(layer)[name][0], "ifco")))
        module = torch.nn.Sequential(lstm)  # quantize_dynamic replaces children only, never the module itself
        if self._quantized:
            module = torch.ao.quantization.quantize_dynamic(module, {torch.nn.LSTM}, dtype=torch.qint8)
            if "quantized" not in type(module[0]).__module__:
                raise RuntimeError("quantize_dynamic left the layer float")
        chosen, feeds = module[0], {n: torch.from_numpy(a) for n, a in layer.feeds().items()}

        def run() -> Any:
            with torch.inference_mode():
                return chosen(feeds["X"], (feeds["h0"], feeds["c0"]))

        return run, lambda: np.asarray(run()[0].numpy())


class OpenVino(Way):
    """OpenVINO from the ONNX model, float or quantized by NNCF."""

    def __init__(self, threads: int, quantized: bool) -> None:
        super().__init__(threads)
        import openvino

        if quantized:
            import nncf

            nncf.set_log_level(40)
        self._quantized, self._openvino = quantized, openvino

    @property
    def version(self) -> str:
        """The version of the package."""
        return f"openvino {self._openvino.__version__.split('-')[0]}"

    def build(self, layer: Layer) -> Built:
        """See `Way`; checks the precision in the run-time graph."""
        ov, feeds = self._openvino, layer.feeds()
        core = ov.Core()
        model = core.read_model(layer.model().SerializeToString())
        if self._quantized:
            import nncf
            from openvino import passes

            # The weights reach LSTMSequence through Split and Concat; NNCF quantizes only constants.
            manager = passes.Manager()
            manager.register_pass(passes.ConstantFolding())
            manager.run_passes(model)
            # The layer has one scale for x and h; if their ranges differ OpenVINO uses x's for both.
            h0 = feeds["h0"].copy()
            h0.flat[:2] = feeds["X"].min(), feeds["X"].max()
            model = nncf.quantize(model, nncf.Dataset([{**feeds, "h0": h0}]), subset_size=1)
        precision = "f32"
        options = {
            "INFERENCE_NUM_THREADS": self.threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": precision,
        }  # fmt: skip
        compiled = core.compile_model(model, "CPU", options)
        ops = [n.get_rt_info() for n in compiled.get_runtime_model().get_ops()]
        kinds = {i["layerType"].astype(str): i["runtimePrecision"].astype(str) for i in ops}
        found = next((v for k, v in kinds.items() if k in ("RNNSeq", "RNNCell")), "none")
        if found not in (("u8", "i8") if self._quantized else (precision,)):
            raise RuntimeError(f"the layer runs in {found}: {kinds}")
        request = compiled.create_infer_request()
        for port in compiled.inputs:
            request.set_tensor(port, ov.Tensor(feeds[next(n for n in port.get_names() if n in feeds)]))
        output = next(port for port in compiled.outputs if "Y" in port.get_names())
        return request.infer, lambda: np.array(request.get_tensor(output).data)


WAYS: dict[str, Callable[[int], Way]] = {
    "rnnqc int8": Rnnqc,
    "rnnqc int4": lambda threads: Rnnqc(threads, overrides=("*.weight.bits=4",)),
    "rnnqc stock": lambda threads: Rnnqc(threads, native=False),
    "ort float": Ort,
    "ort int8 tensor": lambda threads: DynamicQuantizeLstm(threads, per_channel=False),
    "ort int8 channel": lambda threads: DynamicQuantizeLstm(threads, per_channel=True),
    "torch float": lambda threads: Torch(threads, quantized=False),
    "torch int8": lambda threads: Torch(threads, quantized=True),
    "openvino float": lambda threads: OpenVino(threads, quantized=False),
    "openvino int8": lambda threads: OpenVino(threads, quantized=True),
    "ort identity": Identity,
}
INSTALL = {"torch": "pip install torch:", "openvino": "pip install openvino nncf:"}


def _weights(layer: Layer) -> dict[str, Array]:
    return {t.name: onnx.numpy_helper.to_array(t) for t in layer.model().graph.initializer}


def _gates(weights: Array, order: str) -> Array:
    """Reorders the rows of `[4H, K]` from ONNX's gate order i, o, f, c to another one."""
    return np.concatenate([np.split(weights, 4)["iofc".index(gate)] for gate in order])


def quality(layer: Layer, y: Array) -> float:
    """Returns the SQNR of Y against onnxruntime's float LSTM in dB; 200 if they are equal."""
    session = rnnqc.session(layer.model(), native=False, options=session_options())
    return min(200.0, sqnr_db(np.asarray(session.run(["Y"], layer.feeds())[0]).ravel(), y.ravel()))


def write_feeds(layer: Layer, folder: Path) -> None:
    """Writes X, h0, c0 as raw float32 files."""
    for name, array in layer.feeds().items():
        array.tofile(folder / f"{name}.f32")


def write_weights(layer: Layer, folder: Path) -> None:
    """Writes W as `[I,4,H]` and R as `[H,4,H]` with gates i f c o, raw float32: w.f32, r.f32."""
    for name, key in (("w", "W0"), ("r", "R0")):
        weights = _gates(_weights(layer)[key][0], "ifco").reshape(4, layer.H, -1)
        np.ascontiguousarray(weights.transpose(2, 0, 1)).tofile(folder / f"{name}.f32")


def serve(name: str, threads: int) -> None:
    """Answers the requests of turns.py on standard input."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not mix with answers

    def tell(reply: Reply) -> None:
        answers.write(json.dumps(reply) + "\n")
        answers.flush()

    warnings.simplefilter("ignore")
    try:
        way = WAYS[name](threads)
        tell({"version": way.version})
    except (ImportError, OSError, RuntimeError) as error:
        tell({"missing": f"{INSTALL.get(name.split()[0], '')} {error}".strip()})
        return
    for line in sys.stdin:
        command, _, argument = line.strip().partition(" ")
        try:
            if command == "prepare":
                tell({"sqnr_db": way.prepare(Layer.parse(argument, states=True))})
            else:
                tell(way.burst(float(argument)))
        except Exception as error:
            tell({"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"})


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
