"""The layers of the source tree: what imports what, read from the syntax trees alone.

What these would catch: an import against the layers, a cycle, a second user of onnx_graphsurgeon, a runtime that needs
the compiler, a picture of the imports that no longer holds, a docstring that begins with "What". `python -m
tests.project.test_layering` prints the pictures of docs/architecture.md.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAYERS: tuple[tuple[str, ...], ...] = (
    ("wording", "codes"),
    ("errors", "counterparts", "results"),
    ("proto", "formats"),
    ("cells",),
    ("reference",),
    ("ir",),
    ("data",),
    ("evaluation",),
    ("recipes",),
    ("passes.constant_checks", "passes.invariants"),
    ("passes.base",),
    ("passes.manager",),
    ("passes.instruments",),
    ("passes.graph",),
    ("passes.graph.nodes",),
    ("passes.graph.values",),
    ("passes.graph.loops", "passes.graph.flat"),
    ("passes.recover.rows",),
    ("passes.recover.steps",),
    ("passes.recover.loops",),
    ("passes.normalize", "passes.recover", "passes.cells"),
    ("passes.analysis",),
    ("passes.formats",),
    ("passes.fold",),
    ("passes.qcdq",),
    ("passes.render.operands",),
    ("passes.render.lut",),
    ("passes.render.fixed_point",),
    ("passes.render", "passes.weight_only"),
    ("passes.custom_cells.program",),
    ("passes.brevitas", "passes.custom_cells", "passes.rest", "passes.views"),
    ("passes.linear",),
    ("passes.verify",),
    ("passes.pipeline",),
    ("passes",),
    ("calibration", "measure"),
    ("layers",),
    ("lowering",),
    ("sessions",),
    ("timing", "scores", "tracing", "verification"),
    ("dumps",),
    ("search",),
    ("reporting",),
    ("commands",),
    ("cli",),
)
"""Lowest first; a module belongs to the package of its longest listed prefix and imports that and lower layers."""
FACES = {"", "__main__"}
"""Modules at the top: `rnnqc` itself and `python -m rnnqc`."""


def _files() -> dict[str, Path]:
    """Every module by its name below `rnnqc.`."""
    found: dict[str, Path] = {}
    for folder, prefix in (("rnnqc", ""), ("passes", "passes."), ("runtime_ops", "runtime_ops.")):
        for path in sorted((ROOT / folder).rglob("*.py")):
            below = path.relative_to(ROOT / folder)
            if folder == "rnnqc" and below.parts[0] in ("passes", "runtime_ops"):
                continue  # symlinks to the two other folders
            parts = [*below.parts[:-1], below.stem] if below.stem != "__init__" else list(below.parts[:-1])
            found[(prefix + ".".join(parts)).rstrip(".")] = path
    return found


FILES = _files()


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def _imports(path: Path) -> tuple[tuple[int, str], ...]:
    """Line and full name of everything a file imports, at the top or inside functions; type-checking imports too."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found.append((node.lineno, node.module or ""))
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return tuple(found)


def _own_imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and name below `rnnqc.` of every imported module of the project."""
    for line, name in _imports(path):
        below = name.removeprefix("rnnqc.") if name.startswith("rnnqc.") else "" if name == "rnnqc" else None
        if below is not None and below in FILES:
            yield line, below


def _layer(module: str) -> tuple[int, str]:
    parts = module.split(".")
    for count in range(len(parts), 0, -1):
        prefix = ".".join(parts[:count])
        for level, names in enumerate(LAYERS):
            if prefix in names:
                return level, prefix
    raise AssertionError(f"{module} has no layer: put it into LAYERS")


def _imported_groups(depth: int, inside: str) -> dict[str, set[str]]:
    """The imports of each package, without indirect ones; package names have at most `depth` parts."""

    def group(module: str) -> str:
        return ".".join(_layer(module)[1].split(".")[:depth])

    def all_below(name: str) -> set[str]:
        return found[name].union(*(all_below(below) for below in found[name]))

    found: dict[str, set[str]] = {}
    for module in (m for m in COMPILER if m.startswith(inside)):
        own = found.setdefault(group(module), set())
        own |= {group(i) for _, i in _own_imports(FILES[module]) if i.startswith(inside) and i in COMPILER}
        own.discard(group(module))
    return {name: own - set().union(*(all_below(below) for below in own)) for name, own in found.items()}


def pictures() -> str:
    """Both pictures of docs/architecture.md as Mermaid text."""
    drawn = []
    for depth, inside, head in ((1, "", "Packages of `rnnqc/`"), (2, "passes.", "Families of `passes/`")):
        groups = _imported_groups(depth, inside)
        boxes = [f"  {name}[{name.removeprefix(inside)}]" for name in groups]
        arrows = [f"  {a} --> {b}" for a in groups for b in sorted(groups[a])]
        drawn.append("\n".join([f"{head}:\n", "```mermaid", "flowchart TD", *boxes, *arrows, "```\n"]))
    return "\n".join(drawn)


COMPILER = [m for m in FILES if m not in FACES and not m.startswith("runtime_ops")]


def test_the_tree_is_found() -> None:
    assert {"ir", "passes.base", "passes.render.unroll", "runtime_ops", "cells.base", ""} <= FILES.keys()


def test_imports_go_down() -> None:
    wrong = []
    for module in COMPILER:
        level, package = _layer(module)
        for line, imported in _own_imports(FILES[module]):
            if imported == "" or imported.startswith("runtime_ops"):
                continue  # `from rnnqc import x` names x as well
            other, its_package = _layer(imported)
            if other >= level and its_package != package:
                wrong.append(f"{FILES[module].relative_to(ROOT)}:{line} imports rnnqc.{imported}")
    assert wrong == []


def test_no_cycles() -> None:
    """There are none within a layer either; `passes/__init__.py`, which only collects, does not count."""
    edges = {m: {i for _, i in _own_imports(FILES[m]) if i not in ("", "passes", m)} for m in COMPILER}
    done: set[str] = set()
    while True:
        ready = {m for m, needs in edges.items() if m not in done and not (needs & edges.keys()) - done}
        if not ready:
            break
        done |= ready
    assert sorted(edges.keys() - done) == []


def test_the_pictures_hold() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    held = page.split("<!-- imports:begin -->\n")[1].split("<!-- imports:end -->")[0]
    assert held == pictures(), "python -m tests.project.test_layering prints the pictures"


def test_passes_do_not_import_the_package_of_passes() -> None:
    """`rnnqc.passes` imports every pass; a pass that imported it would need all others to be imported."""
    wrong = [m for m in COMPILER if m.startswith("passes.") for _, i in _own_imports(FILES[m]) if i == "passes"]
    assert wrong == []


def test_the_runtime_needs_nothing_of_the_compiler() -> None:
    names = {name for m, path in FILES.items() if m.startswith("runtime_ops") for _, name in _imports(path)}
    assert not [n for n in names if n.split(".")[0] == "rnnqc" and not n.startswith("rnnqc.runtime_ops")]
    assert not names & {"onnx", "onnx_graphsurgeon"}


def test_only_ir_imports_graphsurgeon() -> None:
    users = {m for m, path in FILES.items() for _, name in _imports(path) if name.split(".")[0] == "onnx_graphsurgeon"}
    assert {u.partition(".")[0] for u in users} == {"ir"}


def test_no_second_copies() -> None:
    """`import passes` works in a checkout and makes second copies of every class."""
    others = ("passes", "runtime_ops", "tests")
    assert not [(m, n) for m, path in FILES.items() for _, n in _imports(path) if n.split(".")[0] in others]


def test_no_print_outside_the_command_line() -> None:
    wrong = []
    for module in COMPILER:
        if module.startswith("commands."):
            continue
        calls = [n for n in ast.walk(_tree(FILES[module])) if isinstance(n, ast.Call)]
        wrong += [f"{module}:{n.lineno}" for n in calls if getattr(n.func, "id", "") == "print"]
    assert wrong == []


def test_every_pass_stands_alone() -> None:
    """One pass class per file."""
    found = 0
    for module in (m for m in COMPILER if m.startswith("passes.")):
        classes = [
            n.name
            for n in _tree(FILES[module]).body
            if isinstance(n, ast.ClassDef) and any(getattr(b, "id", "") == "Pass" for b in n.bases)
        ]
        assert len(classes) <= 1, module
        found += len(classes)
        if not classes:
            continue
        name = "".join(f"_{c.lower()}" if c.isupper() else c for c in classes[0]).lstrip("_")
        assert module.split(".")[0::2] == ["passes", name], "a pass stands in the folder of its stage, by its name"
    assert found > 15


def test_docstrings_name_their_subject() -> None:
    """No docstring begins with "What ": the first words name the action or the thing."""
    others = [p for folder in ("tests", "benchmarks", "scripts") for p in sorted((ROOT / folder).rglob("*.py"))]
    start = re.compile(r'^\s*r?"""\s*What ', re.M)
    wrong = [
        str(p.relative_to(ROOT)) for p in (*FILES.values(), *others) if start.search(p.read_text(encoding="utf-8"))
    ]
    assert wrong == []


if __name__ == "__main__":
    print(pictures(), end="")
