"""`python -m tests.generate`: generates cases, checks them, and keeps what reproduces the findings.

Exit codes: 0 nothing was found; 1 something was; 2 bad usage.
"""

from __future__ import annotations

import argparse
import collections
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rnnqc.errors import RnnqcError
from rnnqc.recipes.recipe import builtin_recipes
from tests.generate.cases import NEED_DATA, Case, generate
from tests.generate.checks import Checked, examine
from tests.generate.reproducers import save, shrink


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: Arguments without the program's name; those of the process by default.

    Returns:
        The exit code.
    """
    a = _parser().parse_args(argv)
    found = 0
    counted: collections.Counter[str] = collections.Counter()
    for seed in range(a.seed, a.seed + a.cases):
        case = generate(seed)
        if a.recipe:
            case = replace(case, recipe=a.recipe, calibrated=case.calibrated or a.calibrated or a.recipe in NEED_DATA)
        checked = examine(case, native=not a.stock)
        counted.update(form.partition(":")[0] for form in checked.forms)
        if not checked.findings:
            continue
        found += 1
        kinds = sorted({f.kind for f in checked.findings})
        print(f"seed {seed}: {', '.join(kinds)}: {_line(checked.findings[0].text)}", flush=True)
        if a.shrink:
            checked = _smallest(checked, not a.stock)
            print(f"  {checked.case}")
        if a.output:
            try:
                save(checked, a.output / str(seed))
            except RnnqcError as error:
                print(f"tests.generate: error: {error}", file=sys.stderr)
                return 2
    layers = ", ".join(f"{form} {count}" for form, count in sorted(counted.items()))
    print(f"{a.cases} case(s) from seed {a.seed}: {found} with findings; layers: {layers or 'none'}")
    return 1 if found else 0


def _smallest(checked: Checked, native: bool) -> Checked:
    kinds = {f.kind for f in checked.findings}

    def still(case: Case) -> bool:
        return bool(kinds & {f.kind for f in examine(case, native=native).findings})

    return examine(shrink(checked.case, still), native=native)


def _line(text: str) -> str:
    """The last line of a text, which may be a traceback, short and printable."""
    line = next((line for line in reversed(text.splitlines()) if line.strip()), "")
    return "".join(c if c.isprintable() else " " for c in line)[:300]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.generate", description="Checks rnnqc on random valid models with recurrent layers."
    )
    parser.add_argument("--cases", type=_count, default=100, metavar="N", help="how many, default 100")
    parser.add_argument("--seed", type=_count, default=0, metavar="S", help="the seed of the first, default 0")
    names = [r.name for r in builtin_recipes()]
    parser.add_argument("--recipe", choices=names, help="one recipe for all; by default each case has its own")
    parser.add_argument("--calibrated", action="store_true", help="with --recipe: calibrate on the case's own feeds")
    parser.add_argument("-o", "--output", type=Path, metavar="FOLDER", help="a folder for models, feeds and reports")
    parser.add_argument("--no-shrink", action="store_false", dest="shrink", help="keep cases as they were generated")
    parser.add_argument("--stock", action="store_true", help="without the native library")
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


_count.__name__ = "whole number"


if __name__ == "__main__":
    sys.exit(main())
