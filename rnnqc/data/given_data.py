"""Opens data in the forms that users have: files, functions, arrays, tensors and loaders."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.data.feeds import Feeds, true_inputs
from rnnqc.data.npz import RAGGED, NpzFolder, read_npz
from rnnqc.data.user_code import check_names_a_module, importable_working_folder, named_object
from rnnqc.errors import CompileError, UsageError

Data = str | os.PathLike[str] | Mapping[str, Any] | Iterable[Any]
"""Data for a model in any form that users have.

The name of an `.npz`, of a directory of `.npz`, or `module:function`; a dict of arrays as an `.npz` holds them; or any
iterable of feeds, such as a `torch.utils.data.DataLoader`. Arrays may be torch tensors. A feed is a dict of arrays by
name of input, or arrays in the order of the inputs, optionally followed by labels; a tuple of stacked arrays for
several inputs is read as such a dict.
"""
LABEL = "label"
"""The name of an array of labels that follows the inputs."""
_FILES = ".npz, a directory of .npz, or module:function"


def open_feeds(source: Data, proto: onnx.ModelProto, carried: Iterable[str] = (), label: str = LABEL) -> Iterable[Any]:
    """Opens data as an iterable of feeds, read one at a time and not checked.

    In an `.npz` or a dict, arrays are named like the model's inputs. Where an array has one dimension more than the
    input, its leading axis counts samples; with carried inputs, also where the rank of an input is not declared. Other
    arrays, such as labels, are split along with them if they are as long. Each file of a directory is one feed.

    Args:
        source: The data.
        proto: The model.
        carried: Inputs whose array applies only to the first sample of an `.npz` or a dict.
        label: The name of an array that follows those of the inputs.

    Returns:
        The feeds. Items that are not feeds are passed on unchanged; `checked` refuses them.

    Raises:
        CompileError: The data cannot be read, at once or when a feed is taken.
        UsageError: A DataLoader shuffles calls that carry states.
    """
    if set(carried) and type(getattr(source, "sampler", None)).__name__ == "RandomSampler":
        raise UsageError(
            f"the {type(source).__name__} shuffles, and states go from call to call.",
            supported="calls in their order",
            action="shuffle=False",
        )
    if isinstance(source, str | os.PathLike):
        return _from_name(os.fspath(source), proto, set(carried), label)
    names = [i.name for i in true_inputs(proto) if i.name not in set(carried)]
    if is_array(source):
        source = {names[0]: source} if len(names) == 1 else [source]
    elif isinstance(source, list | tuple) and len(names) > 1:
        source = _in_order(source, names, label) or source
    if isinstance(source, Mapping):
        return _samples({k: array_of(v) for k, v in source.items()}, proto, "the dict", set(carried))
    if isinstance(source, NpzFolder):
        return source
    if not isinstance(source, Iterable):
        name = type(source).__qualname__
        raise CompileError(
            f"the data is a {name}.",
            supported=f"{_FILES}, a dict of arrays, or an iterable of feeds",
            action="give it as --stats" if name == "Statistics" else "give a list of dicts of arrays",
        )
    feeds = (_feed(item, names, label) for item in source)
    return list(feeds) if isinstance(source, list | tuple) else feeds


def array_of(value: Any) -> npt.NDArray[Any]:
    """Converts an array, or a torch tensor on any device, to a numpy array.

    Raises:
        CompileError: numpy has no such type, or rows have different lengths.
    """
    if not callable(getattr(value, "detach", None)):
        try:
            return np.asarray(value)
        except ValueError as error:
            raise CompileError(
                f"a {type(value).__name__} cannot become a numpy array ({error}).", supported="arrays", action=RAGGED
            ) from error
    try:
        return np.asarray(value.detach().cpu().numpy())
    except (TypeError, RuntimeError) as error:
        raise CompileError(
            f"a tensor of type {getattr(value, 'dtype', 'unknown')} cannot become a numpy array ({error}).",
            supported="dense tensors of a type that numpy has",
            action="convert it, for example with .float()",
        ) from error


def is_array(value: Any) -> bool:
    """Whether a value is an array or a torch tensor."""
    return not isinstance(value, list | tuple | Mapping) and (
        hasattr(value, "__array__") or callable(getattr(value, "detach", None))
    )


def _feed(item: Any, names: list[str], label: str) -> Any:
    """Converts an element of an iterable to arrays by name; returns it unchanged if it is not a feed."""
    if isinstance(item, Mapping):
        return {name: array_of(value) for name, value in item.items()}
    if is_array(item) and len(names) == 1:
        return {names[0]: array_of(item)}
    made = _in_order(item, names, label) if isinstance(item, list | tuple) else None
    return item if made is None else made


def _in_order(arrays: Sequence[Any], names: Sequence[str], label: str) -> Feeds | None:
    """Names arrays given in the order of the inputs, optionally followed by labels; None if they do not match."""
    if not len(names) <= len(arrays) <= len(names) + 1 or not all(map(is_array, arrays)):
        return None
    return {name: array_of(value) for name, value in zip([*names, label], arrays, strict=False)}


def _from_name(source: str, proto: onnx.ModelProto, once: AbstractSet[str], label: str) -> Iterable[Any]:
    path = Path(source)
    if path.is_dir():
        return NpzFolder(path)
    if path.suffix == ".json" and path.exists():
        raise CompileError(
            f"{source}: is no file of arrays.",
            supported=_FILES,
            action="give a statistics file as --stats, and data as .npz, as numpy.savez writes it",
        )
    if path.exists() or source.endswith(".npz"):
        return _samples(read_npz(path), proto, source, once)
    if ":" in source:
        return _from_function(source, [i.name for i in true_inputs(proto) if i.name not in once], label)
    raise CompileError(f"{source}: no such file.", supported=_FILES, action="check the path")


def _samples(arrays: Feeds, proto: onnx.ModelProto, source: str, once: AbstractSet[str]) -> list[Feeds]:
    inputs = true_inputs(proto)
    ranks = {i.name: len(i.type.tensor_type.shape.dim) for i in inputs if i.type.tensor_type.HasField("shape")}
    stacked = {k for k, r in ranks.items() if k in arrays and arrays[k].ndim == r + 1}
    if once:
        stacked |= {i.name for i in inputs if i.name not in {*ranks, *once} and np.ndim(arrays.get(i.name, 0))}
    if not stacked:
        _check_calls(arrays, inputs, source, once)
        return [arrays]
    for name in sorted(stacked & once):
        raise CompileError(
            f"{source}: array {name!r} of a carried state has a leading axis for samples: each would start anew.",
            supported=f"its value for the first call, shape {list(arrays[name].shape[1:])}, or no array at all",
            action=f"leave the array out, or keep its first entry; without {name!r} carried, every sample starts there",
        )
    counts = {arrays[k].shape[0] for k in stacked}
    names = {i.name for i in inputs}
    stacked |= {k for k, a in arrays.items() if k not in names and a.ndim and counts == {a.shape[0]}}  # labels
    if len(counts) != 1:
        raise CompileError(
            f"{source}: arrays have different numbers of samples: {sorted(counts)}.",
            supported="one leading axis for all",
            action="cut the arrays to one number of samples",
        )
    return [
        {k: (a[s] if k in stacked else a) for k, a in arrays.items() if s == 0 or k in stacked or k not in once}
        for s in range(counts.pop())
    ]


def _check_calls(arrays: Feeds, inputs: Iterable[onnx.ValueInfoProto], source: str, carried: AbstractSet[str]) -> None:
    """Refuses one call of a stream whose leading axis may be meant to count calls.

    Raises:
        CompileError: States are carried, and an open leading axis is longer than 1 and matches no given state. If the
            next axis is open, too, and has the size of a state, the leading axis is time and is accepted.
    """
    rows = {size for name in carried & set(arrays) for size in arrays[name].shape}
    for value in inputs:
        array, dims = arrays.get(value.name), value.type.tensor_type.shape.dim
        if not carried or value.name in carried or array is None or array.ndim < 2:
            continue
        if not dims or dims[0].HasField("dim_value"):
            continue
        count, rest = array.shape[0], array.shape[1:]
        is_batch = count in rows or (rest[0] in rows and not dims[1].HasField("dim_value"))
        if count > 1 and not is_batch:
            raise CompileError(
                f"{source}: array {value.name!r} of shape {[count, *rest]} is one call, and states are carried from "
                "call to call.",
                supported=f"a leading axis that counts calls: {[count, 1, *rest]} is {count} calls of {[1, *rest]}",
                action=f"insert that axis ({value.name}[:, None]); or, for one call, give a list of one dict or a "
                "directory of one .npz",
            )


def _from_function(source: str, names: list[str], label: str) -> Iterator[Any]:
    check_names_a_module(source, source)
    with importable_working_folder():  # throughout: the function may be a generator that imports
        try:
            result: Iterable[Any] = named_object(source)()
            for feed in result:
                yield _feed(feed, names, label)
        except CompileError:
            raise
        except Exception as error:
            raise CompileError(
                f"{source}: cannot be called ({type(error).__name__}: {error}).",
                supported="module:function without arguments that returns dicts of arrays",
                action="call the function in Python to see the error in full",
            ) from error
