"""Measures models against each other in onnxruntime.

Sessions take turns: in every round each runs for a short burst, so that a change of the machine's speed affects all
alike. The minimum is the time of an undisturbed run; ratios are ratios of minima of one measurement.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort

from rnnqc import runtime_ops
from rnnqc.cells.forms import ORT
from rnnqc.codes import Code, Told, coded, told
from rnnqc.data.binding import bind_dimensions, bound_like
from rnnqc.data.feeds import with_dimensions_of
from rnnqc.data.given_data import Data
from rnnqc.errors import CompileError, UsageError, located
from rnnqc.ir import Model
from rnnqc.lowering.executable import executable, without_crashes
from rnnqc.lowering.lower import lower
from rnnqc.lowering.lowered_before import is_lowered
from rnnqc.lowering.plan import AS_EXPORTED
from rnnqc.lowering.reports.report import Entry
from rnnqc.measure.measured_call import measured_call
from rnnqc.measure.runs import State
from rnnqc.passes.analysis.find_recurrent_nodes import lowered_nodes
from rnnqc.passes.graph.nodes.quant_operators import is_quant_lstm
from rnnqc.proto.given import Given, as_given, name_of, proto_of
from rnnqc.results import Result
from rnnqc.sessions import session

Array = npt.NDArray[Any]
FLOAT, STOCK, NATIVE = "float", "stock", "native"
"""Ways of running a model; `forms.ORT` is another one: onnxruntime's own quantized LSTM."""
WARM_UP = 3
BURST = 0.05
SETTLE = 0.005
MOST_THREADS = 64
"""Accepted on every machine; a machine with more processors accepts as many. onnxruntime itself has no limit."""


@dataclass(frozen=True)
class Timing:
    """The times of one way of running a model.

    Attributes:
        name: "float", "stock" (lowered, without the native library), "native", or "ort": a float model lowered to that
            form, for programs that cannot load the library.
        runs: The number of measured runs.
        min_us: The shortest, in microseconds.
        median_us: Their median.
        speedup: Shortest run of the first way of the measurement over this one's.
    """

    name: str
    runs: int
    min_us: float
    median_us: float
    speedup: float


@dataclass(frozen=True, repr=False)
class Measurement(Result):
    """All ways of running one model.

    Attributes:
        threads: Intra-op threads of every session.
        rounds: The number of rounds in which the sessions took turns.
        inputs: Type and shape of every input, such as "float32 [100, 1, 64]".
        generated: Whether the inputs were generated.
        data: Which call of which data was measured, in words.
        timings: One per way; the first is the base of comparisons.
        float_entries: Recurrent nodes that lowering on the fly left float.
        isa: Kernels of the native library.
        environment: Processor and versions.
    """

    threads: int
    rounds: int
    inputs: dict[str, str]
    generated: bool
    data: str
    timings: list[Timing]
    float_entries: list[Entry] = field(default_factory=list)
    isa: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def headline(self) -> str:
        """A description of the measurement."""
        shapes = ", ".join(f"{name} {text}" for name, text in self.inputs.items())
        origin = "generated" if self.generated else "given"
        return f"{self.threads} thread(s), {origin} inputs {shapes} ({self.data})"

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row for each way of running the model; times in microseconds."""
        return [asdict(t) for t in self.timings]

    @property
    def messages(self) -> list[Told]:
        """Why recurrent nodes of a float model were not lowered."""
        nothing = told(Code.NO_LAYER, "no recurrent layer of the model was lowered; it was measured as it is.")
        floats = [coded(e.code, e.explanation) for e in self.float_entries]
        return [*floats, nothing] if [t.name for t in self.timings] == [FLOAT] else floats

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON-ready values."""
        return asdict(self)


def session_options(threads: int = 1) -> ort.SessionOptions:
    """Returns default optimizations, sequential execution, a pool of `threads`, and a log of fatal errors only."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0" if threads == 1 else "1")
    return options


def environment() -> dict[str, str]:
    """Returns processor and versions."""
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return {
        "cpu": model,
        "machine": platform.machine(),
        "python": platform.python_version(),
        "onnxruntime": ort.__version__,
    }


def bound_run(live: ort.InferenceSession, feeds: Mapping[str, Array]) -> Callable[[], None]:
    """Returns a function that runs the session once, with inputs and outputs bound to memory in advance.

    This leaves about 2 us of Python overhead per run, half of that of `InferenceSession.run`. Models with text, with
    outputs that are not tensors, or with shapes other than declared are run without binding.

    Raises:
        CompileError: onnxruntime fails.
    """
    known = {i.name for i in live.get_inputs()}
    held = {name: np.ascontiguousarray(array) for name, array in feeds.items() if name in known}
    declared = {o.name: o.shape for o in live.get_outputs()}
    names = list(declared)
    try:
        outputs = live.run(names, held)
    except Exception as error:
        raise CompileError(
            f"onnxruntime failed while running the model: {str(error).strip().splitlines()[0]}",
            action="check that the model runs on these inputs; give others with -i",
        ) from error
    tensors = all(isinstance(a, np.ndarray) and a.dtype.kind in "fiub" for a in (*held.values(), *outputs))
    if not tensors or not all(_fits(a.shape, declared[n]) for n, a in zip(names, outputs, strict=True)):

        def unbound() -> None:
            live.run(names, held)

        return unbound
    binding = live.io_binding()
    for name, array in held.items():
        binding.bind_cpu_input(name, array)
    for name, value in zip(names, outputs, strict=True):
        binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(value))

    def bound() -> None:
        live.run_with_iobinding(binding)

    return bound


def _fits(shape: Sequence[int], declared: Sequence[int | str | None]) -> bool:
    """Whether a shape matches a declared one: names and None match any size."""
    sizes = [d if isinstance(d, int) and d >= 0 else None for d in declared]
    return len(shape) == len(sizes) and all(d in (None, n) for n, d in zip(shape, sizes, strict=True))


def burst(run: Callable[[], object], seconds: float = BURST, settle: float = SETTLE) -> list[float]:
    """Returns the seconds of every run of a burst, at least one, after `settle` seconds of warm-up.

    The warm-up refills caches, and lets threads that another session's pool left spinning go to sleep.
    """
    clock = time.perf_counter
    begin = clock()
    run()
    while clock() - begin < settle:
        run()
    times: list[float] = []
    begin = start = clock()
    while not times or start - begin < seconds:
        run()
        end = clock()
        times.append(end - start)
        start = end
    return times


def take_turns(
    runs: Mapping[str, Callable[[], object]],
    rounds: int,
    seconds: float = BURST,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, list[float]]:
    """Returns the seconds of every run by name; each round has one burst of each and begins with another one.

    Args:
        runs: What to run, by name.
        rounds: The number of bursts of each.
        seconds: Length of a burst.
        progress: Called between bursts with the number done and the total.
    """
    for run in runs.values():
        for _ in range(WARM_UP):
            run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for k in range(rounds):
        shift = k % len(names)
        for position, name in enumerate(names[shift:] + names[:shift]):
            times[name] += burst(runs[name], seconds)
            if progress is not None:
                progress(k * len(names) + position + 1, rounds * len(names))
    return times


def timings(times: Mapping[str, Sequence[float]]) -> list[Timing]:
    """Returns minimum and median of seconds by name; the first name is the base of the ratios."""
    base = min(next(iter(times.values())))
    return [Timing(n, len(v), 1e6 * min(v), 1e6 * statistics.median(v), base / min(v)) for n, v in times.items()]


def bench(
    model: Given,
    against: Given | None = None,
    *,
    threads: int = 1,
    rounds: int = 10,
    inputs: Data | None = None,
    state: State = None,
    dims: Mapping[str, int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Measurement:
    """Measures a model: a lowered one stock and native, a float one also as the default recipe lowers it.

    Examples:
        >>> import rnnqc
        >>> [row["name"] for row in rnnqc.bench("models/digits_lstm.onnx", rounds=1).rows]
        ['float', 'stock', 'native', 'ort']

    Args:
        model: A lowered or a float model: a path, a ModelProto, or a `torch.onnx.ONNXProgram`.
        against: The float model that `model` was lowered from, to be measured too.
        threads: Intra-op threads of every session.
        rounds: The number of rounds in which the sessions take turns.
        inputs: Data as `rnnqc.lower` takes it, whose first sample is measured; generated by default.
        state: The data is the calls of a stream: outputs by the input they become in the next call, or texts `IN:OUT`.
            A later call is measured, with the states that the float model has then.
        dims: Sizes of symbolic dimensions for generated inputs; the models that run keep them symbolic.
        progress: Called with the number of bursts done and the total.

    Raises:
        UsageError: The options contradict each other or the models.
        CompileError: A model or the inputs cannot be used, or there is no native library.
    """
    model, against = as_given(model), None if against is None else as_given(against)
    _check_options(threads, rounds, inputs, dims)
    protos, entries = _ways(model, against)
    reference = protos.get(FLOAT, protos.get(STOCK))
    assert reference is not None
    where = name_of(model if against is None else against)
    with located(where):
        runnable = executable(reference) if state else reference
        call = measured_call(runnable, _sized(reference, protos, dims or {}), inputs, state)
    runs = {}
    for name, proto in protos.items():
        with located(where if name == FLOAT else name_of(model)):
            live = session(without_crashes(proto), native=name == NATIVE, options=session_options(threads))
            runs[name] = bound_run(live, call.feed)
    return Measurement(
        threads,
        rounds,
        {name: f"{array.dtype} {list(array.shape)}" for name, array in call.feed.items()},
        inputs is None,
        call.origin,
        timings(take_turns(runs, rounds, progress=progress)),
        entries,
        runtime_ops.isa() if NATIVE in runs else "",
        environment(),
    )


def _check_options(threads: int, rounds: int, inputs: Any, dims: Mapping[str, int] | None) -> None:
    most = max(MOST_THREADS, os.cpu_count() or 1)
    if not 1 <= threads <= most:
        raise UsageError(
            f"--threads {threads}.", supported=f"numbers from 1 to {most}", action="for example --threads 1"
        )
    if rounds < 1:
        raise UsageError(f"--rounds {rounds}.", supported="numbers from 1 on", action="for example --rounds 10")
    if inputs is not None and dims:
        raise UsageError(
            f"--dim has no meaning for given inputs{f' ({inputs})' if isinstance(inputs, str | os.PathLike) else ''}.",
            supported="--dim for generated inputs",
            action="leave one out",
        )


def _ways(model: Given, against: Given | None) -> tuple[dict[str, onnx.ModelProto], list[Entry]]:
    """Returns the models to run, the base of the ratios first, and the nodes that lowering on the fly left float."""
    proto = proto_of(model)
    read = _read(proto, name_of(model))
    if is_lowered(read) and not any(is_quant_lstm(n) for g in read.graphs() for n in g.nodes):  # these run once lowered
        lowered = {STOCK: proto, **({NATIVE: proto} if lowered_nodes(read) else {})}
        if against is None:
            return lowered, []
        reference = bound_like(proto_of(against), proto)
        if is_lowered(_read(reference, name_of(against))):
            raise UsageError(
                f"--against {name_of(against)}: is a lowered model.",
                supported="the float model",
                action="name the float model, or measure the two one after the other",
            )
        return {FLOAT: reference, **lowered}, []
    if against is not None:
        raise UsageError(
            f"{name_of(model)}: has no cell that rnnqc lowered; there is nothing to compare with --against "
            f"{name_of(against)}.",
            supported="a model with lowered recurrent layers and --against, a float model without",
            action="leave --against out, or name what `rnnqc lower` has written",
        )
    result = lower(model)
    entries = list(result.report.float_entries)
    if len(entries) == len(result.report.entries):
        return {FLOAT: proto}, entries
    if result.report.recipe == AS_EXPORTED:  # it has no float model
        return {STOCK: result.proto, NATIVE: result.proto}, entries
    ways = {FLOAT: proto, STOCK: result.proto, NATIVE: result.proto}
    without_library = lower(model, form=ORT)
    if without_library.report.is_changed:
        ways[ORT] = without_library.proto
    return ways, entries


def _read(proto: onnx.ModelProto, source: str) -> Model:
    with located(source):
        return Model.load(proto)


def _sized(
    reference: onnx.ModelProto, protos: Mapping[str, onnx.ModelProto], dims: Mapping[str, int]
) -> onnx.ModelProto:
    """Returns the float model with input sizes fixed by the lowered one or by `dims`."""
    sized = with_dimensions_of(reference, protos.get(STOCK, reference))
    if not dims:
        return sized
    model = Model.load(sized)
    bind_dimensions(model, dict(dims))
    return model.proto
