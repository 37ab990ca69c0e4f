"""Hashes of the files that `rnnqc lower` writes, to check that a refactoring changes no byte between two checkouts.

    python scripts/fingerprints.py before.json                        # in one environment
    python scripts/fingerprints.py after.json --compare before.json   # in the other; exit code 1 if a file differs

Every model in `models/`, and in `$RNNQC_SHARED/models` and `$RNNQC_SHARED/brevitas` if that is set, is lowered with
every recipe and to every form; `--quick` uses only the models of this repository, and every recipe only for some of
them. A case is a list of command line arguments; its record is the exit code and the SHA-256 of all files written.
Calibration data are random with a fixed seed: compare on one machine with one version of onnxruntime.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import hashlib
import io
import json
import multiprocessing
import os
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parents[1]
FORMS = ((), ("--form", "integer"), ("--unroll",), ("--form", "qcdq"), ("--recipe", "brevitas-int8", "--form", "qonnx"))
DEFAULT_RECIPE = "int8"
BUILTIN = ROOT / "rnnqc" / "recipes" / "builtin"
RECIPES = sorted(path.stem for path in BUILTIN.glob("*.toml") if path.stem != DEFAULT_RECIPE)
QUICK = ("lstm_forward", "lstm_bidirectional", "gru_bidirectional", "rnn_relu", "lstm_peepholes", "lstm_sequence_lens")
LARGEST = 16 << 20  # bytes; larger files are lowered with the default recipe only
SIZES = (5, 2, 3, 4)
"""Sizes of the symbolic dimensions of an input, in order."""


def cases(*, quick: bool) -> list[tuple[Path, tuple[str, ...]]]:
    """Returns every model with the arguments for lowering it."""
    folders = [ROOT / "models"]
    if (shared := os.environ.get("RNNQC_SHARED")) and not quick:
        folders += [Path(shared) / "models", Path(shared) / "brevitas"]
    found = []
    for model in (m for folder in folders for m in sorted(folder.rglob("*.onnx"))):
        found += [(model, form) for form in FORMS]
        if model.stat().st_size <= LARGEST and (not quick or model.stem in QUICK):
            found += [(model, ("--recipe", recipe)) for recipe in RECIPES]
            found += [(model, ("--recipe", r, "--form", "integer")) for r in ("pow2-int8", "brevitas-int8", "w4a8")]
    return found


def symbolic_sizes(model: Path) -> dict[str, int]:
    """Returns a size for every symbolic dimension of the inputs."""
    inputs = onnx.load(model, load_external_data=False).graph.input
    names = dict.fromkeys(d.dim_param for v in inputs for d in v.type.tensor_type.shape.dim if d.dim_param)
    return {name: SIZES[k % len(SIZES)] for k, name in enumerate(names)}


def calibration(model: Path, folder: Path) -> Path:
    """Writes an .npz of random inputs for a model; symbolic dimensions have the sizes of `SIZES`."""
    graph = onnx.load(model, load_external_data=False).graph
    constants = {c.name for c in graph.initializer}
    random = np.random.default_rng(zlib.crc32(model.name.encode()))
    feeds, sizes = {}, symbolic_sizes(model)
    for value in (v for v in graph.input if v.name not in constants):
        tensor = value.type.tensor_type
        shape = [d.dim_value or sizes.get(d.dim_param, 1) for d in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if dtype.kind == "f":
            feeds[value.name] = random.normal(size=shape).astype(dtype)
        else:
            feeds[value.name] = random.integers(1, 3, size=shape).astype(dtype)
    path = folder / "calibration.npz"
    np.savez(path, **feeds)
    return path


def fingerprint(model: Path, arguments: tuple[str, ...]) -> str:
    """Returns the exit code and the hash of the files that one case writes."""
    from rnnqc.cli import main

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = ["lower", str(model), "-o", str(folder / "out.onnx"), "-q", *arguments]
        if "--unroll" in arguments:
            command += [a for name, size in symbolic_sizes(model).items() for a in ("--dim", f"{name}={size}")]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            try:
                code = main(command)
                if code == 2:  # a static recipe
                    code = main([*command, "--calibration", str(calibration(model, folder))])
            except SystemExit as stop:
                code = stop.code
            except Exception as error:
                return f"{type(error).__name__}"
        digest = hashlib.sha256()
        for path in sorted(folder.glob("out*")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
        return f"{code} {digest.hexdigest()[:16]}"


def _named(case: tuple[Path, tuple[str, ...]]) -> tuple[str, str]:
    model, arguments = case
    shared = os.environ.get("RNNQC_SHARED", "")
    base = ROOT if model.is_relative_to(ROOT) else Path(shared).resolve()
    return " ".join([str(model.resolve().relative_to(base)), *arguments]), fingerprint(model, arguments)


def main() -> int:
    """Writes the hashes; compares them on request."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--quick", action="store_true", help="the models of this repository only")
    parser.add_argument("--compare", type=Path, metavar="BEFORE.json")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name contains it")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    chosen = [c for c in cases(quick=options.quick) if options.only in " ".join([str(c[0]), *c[1]])]
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        found = dict(pool.map(_named, chosen, chunksize=1))
    options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    refused = sum(not f.startswith("0 ") for f in found.values())
    print(f"{len(found)} cases, {len(found) - refused} written, {refused} refused")
    if not options.compare:
        return 0
    before = json.loads(options.compare.read_text(encoding="utf-8"))
    different = [name for name in found if found[name] != before.get(name)]
    for name in different:
        print(f"different: {name}: {before.get(name)} -> {found[name]}")
    print(f"{len(found) - len(different)} of {len(found)} equal")
    return bool(different)


if __name__ == "__main__":
    sys.exit(main())
