"""A model and its outputs for given feeds, computed once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.errors import CompileError
from rnnqc.evaluation.evaluate import make_session, run_session
from rnnqc.proto.graph_walks import blocks_of, named_tensors

Feeds = Mapping[str, npt.NDArray[Any]]
Outputs = dict[str, Any]
_RESIZING = ("Resize", "Upsample")


class ModelRuns:
    """A model that onnxruntime can run, and its outputs.

    Args:
        proto: The model.
        feeds: The feeds to run it on.
        executable: Converts a model that onnxruntime refuses to one that it runs.
    """

    def __init__(
        self,
        proto: onnx.ModelProto,
        feeds: Sequence[Feeds],
        executable: Callable[[onnx.ModelProto], onnx.ModelProto] | None = None,
    ) -> None:
        self._given, self._feeds, self._executable = proto, feeds, executable
        self._proto: onnx.ModelProto = proto
        self._session: Any = None
        self._outputs: dict[int, Outputs | CompileError] = {}

    @property
    def proto(self) -> onnx.ModelProto:
        """The model that is run: the given one unless onnxruntime refused it."""
        return self._proto

    @property
    def is_converted(self) -> bool:
        """Whether the model that is run differs from the given one."""
        return self._proto is not self._given

    def is_of(self, proto: onnx.ModelProto) -> bool:
        """Whether these are runs of a model with the same graph and functions."""
        return _computation(self._given) == _computation(proto)

    def of(self, number: int) -> Outputs:
        """Returns the outputs for feed `number`, by name.

        Raises:
            CompileError: onnxruntime does not run the model.
        """
        if number not in self._outputs:
            try:
                self._outputs[number] = self.run(self._feeds[number])
            except CompileError as error:
                self._outputs[number] = error
        held = self._outputs[number]
        if isinstance(held, CompileError):
            raise held
        return held

    def run(self, feeds: Feeds) -> Outputs:
        """Returns the outputs for other feeds, without caching them.

        Raises:
            CompileError: onnxruntime does not run the model.
        """
        try:
            return self._run(feeds)
        except CompileError:
            if self._executable is None:
                raise
            convert, self._executable, self._session = self._executable, None, None
            self._proto = convert(self._given)
            return self._run(feeds)

    def _run(self, feeds: Feeds) -> Outputs:
        if self._session is None:
            self._session = make_session(self._proto, optimize=False)
        return run_session(self._session, feeds)

    def moved(self, rng: np.random.Generator) -> ModelRuns:
        """Returns runs of the model with each float of its constants changed by one ULP, up or down.

        Numbers of the algorithm stay: scalars, which are exponents and limits, and the scales of Resize.
        """
        copy = onnx.ModelProto()
        copy.CopyFrom(self._proto)
        blocks = list(blocks_of([copy.graph, *copy.functions]))
        scales = {name for b in blocks for n in b.node if n.op_type in _RESIZING for name in n.input[1:]}
        for name, tensor in (t for b in blocks for t in named_tensors(b)):
            array = onnx.numpy_helper.to_array(tensor)
            if array.dtype.kind == "f" and array.ndim and name not in scales:
                tensor.CopyFrom(onnx.numpy_helper.from_array(_other(array, rng), tensor.name))
        return ModelRuns(copy, self._feeds)

    def released(self) -> ModelRuns:
        """Drops the session, which holds a second copy of the weights; returns itself."""
        self._session = None
        return self


def _computation(model: onnx.ModelProto) -> tuple[bytes, ...]:
    functions = (f.SerializeToString(deterministic=True) for f in model.functions)
    return (model.graph.SerializeToString(deterministic=True), *functions)


def moved(feeds: Feeds, rng: np.random.Generator) -> Feeds:
    """Returns feeds with each float changed by one ULP, up or down."""
    return {k: _other(a, rng) if a.dtype.kind == "f" else a for k, a in feeds.items()}


def _other(a: npt.NDArray[Any], rng: np.random.Generator) -> npt.NDArray[Any]:
    return np.asarray(a * (1 + np.finfo(a.dtype).eps * rng.choice((-1, 1), a.shape)), a.dtype)
