"""What the benchmarks share: session options, the table, the JSON file and where it was measured."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnxruntime as ort
from rich.console import Console
from rich.table import Table


def session_options(threads: int = 1) -> ort.SessionOptions:
    """Default optimizations, sequential, no spinning threads."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0" if threads == 1 else "1")
    return options


def environment() -> dict[str, str]:
    """Processor and versions."""
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


def report(title: str, rows: Sequence[Mapping[str, Any]], json_path: Path | None) -> None:
    """Print the rows as a table whose columns are the keys of the first; write them with the environment as JSON."""
    where = environment()
    table = Table(title=title, caption=", ".join(where.values()))
    for column in rows[0]:
        table.add_column(column, justify="right", no_wrap=not isinstance(rows[0][column], float))
    for row in rows:
        table.add_row(
            *[
                f"{v:.3g}" if isinstance(v, float) and abs(v) < 10 else f"{v:.1f}" if isinstance(v, float) else str(v)
                for v in row.values()
            ]
        )
    Console(width=160).print(table)
    if json_path is not None:
        json_path.write_text(json.dumps({"title": title, "environment": where, "rows": list(rows)}, indent=2) + "\n")
