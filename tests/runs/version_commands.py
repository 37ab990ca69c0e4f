"""A process that runs the commands of rnnqc in the version of onnxruntime that is imported: `MODEL DATA FOLDER`.

Prints a JSON object: the version, and for every command that did not end with 0 what it said.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys

CALIBRATED = ("w4a8", "int8-static", "pow2-int8-floor", "distiller-avg", "brevitas-int8", "pow2-w8a16")


def command_lines(model: str, data: str) -> list[str]:
    """Command lines that follow each other in an empty folder.

    Args:
        model: Path of a float model with a dynamic batch.
        data: Path of arrays `x`, and `y` for the accuracy.
    """
    return [
        "doctor",
        f"inspect {model}",
        f"calibrate {model} --data {data} -o stats.json",
        f"lower {model} -o int8.onnx --rest int8",
        f"lower {model} -o calibrated.onnx --calibration {data}",
        *(f"lower {model} -o {recipe}.onnx --recipe {recipe} --stats stats.json" for recipe in CALIBRATED),
        *(f"lower {model} -o {form}.onnx --form {form}" for form in ("integer", "qcdq", "ort")),
        f"lower {model} -o unrolled.onnx --form integer --unroll",
        f"lower {model} -o weights.onnx --recipe weight-only-int8",
        f"verify {model} int8.onnx",
        f"verify {model} calibrated.onnx --data {data}",
        f"evaluate int8.onnx --against {model} --data {data} --metric accuracy",
        f"report {model} w4a8.onnx --data {data} --stats stats.json -o report.html --models 1",
        f"tune {model} --data {data} -o tuned.toml --min-sqnr 20 --models 3",
        f"run int8.onnx -i {data} -o outputs.npz",
        f"dump int8.onnx -i {data} -o dump --row 0",
        f"bench int8.onnx --against {model} --rounds 1",
    ]


def main(model: str, data: str, folder: str) -> None:
    """Runs the commands and prints what failed."""
    import onnxruntime

    from rnnqc.cli import main as rnnqc

    os.chdir(folder)
    failed: dict[str, str] = {}
    for line in command_lines(model, data):
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = rnnqc(line.split())
        if code:
            failed[line] = f"{code}: {said.getvalue()[-500:]}"
    print(json.dumps({"version": onnxruntime.__version__, "failed": failed}))


if __name__ == "__main__":
    main(*sys.argv[1:])
