"""The layers of the source tree: what imports what, read from the syntax trees alone.

What these would catch: an import against the layers, a cycle, a second user of onnx_graphsurgeon, a runtime that needs
the compiler.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("proto",),
    ("cells",),
    ("reference",),
    ("ir",),
    ("formats",),
    ("data",),
    ("evaluation",),
    ("recipes",),
    ("passes.constant_checks", "passes.invariants"),
    ("passes.base",),
    ("passes.manager",),
    ("passes.instruments",),
    ("passes.graph",),
    ("passes.normalize", "passes.recover", "passes.cells"),
    ("passes.analysis",),
    ("passes.formats",),
    ("passes.fold",),
    ("passes.qcdq",),
    ("passes.render", "passes.weight_only"),
    ("passes.brevitas", "passes.custom_cells"),
    ("passes.verify",),
    ("passes.pipeline",),
    ("passes",),
    ("calibration", "measure"),
    ("lowering",),
    ("session",),
    ("bench", "tracing", "search"),
    ("reporting", "testing"),
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


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything a file imports, at the top or inside functions; type-checking imports too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield node.lineno, node.module or ""
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


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


COMPILER = [m for m in FILES if m not in FACES and not m.startswith("runtime_ops")]


def test_the_tree_is_found() -> None:
    assert {"ir", "passes.base", "passes.render.unroll", "runtime_ops", "cells.base", ""} <= FILES.keys()


@pytest.mark.parametrize("module", COMPILER)
def test_imports_go_down(module: str) -> None:
    level, package = _layer(module)
    wrong = []
    for line, imported in _own_imports(FILES[module]):
        if imported.startswith("runtime_ops"):
            continue
        if imported == "":
            continue  # `from rnnqc import x` names x as well
        other, its_package = _layer(imported)
        if other >= level and its_package != package:
            wrong.append(f"{FILES[module].relative_to(ROOT)}:{line} imports rnnqc.{imported}")
    assert wrong == []


def test_no_cycles() -> None:
    """Also not within a layer; `passes/__init__.py` only collects."""
    edges = {m: {i for _, i in _own_imports(FILES[m]) if i not in ("", "passes", m)} for m in COMPILER}
    done: set[str] = set()
    while True:
        ready = {m for m, needs in edges.items() if m not in done and not (needs & edges.keys()) - done}
        if not ready:
            break
        done |= ready
    assert sorted(edges.keys() - done) == []


def test_passes_do_not_import_the_package_of_passes() -> None:
    """`rnnqc.passes` imports every pass; a pass that imported it would need all others to be imported."""
    wrong = [m for m in COMPILER if m.startswith("passes.") for _, i in _own_imports(FILES[m]) if i == "passes"]
    assert wrong == []


@pytest.mark.parametrize("module", [m for m in FILES if m.startswith("runtime_ops")])
def test_the_runtime_needs_nothing_of_the_compiler(module: str) -> None:
    names = {name for _, name in _imports(FILES[module])}
    assert not [n for n in names if n.split(".")[0] == "rnnqc" and not n.startswith("rnnqc.runtime_ops")]
    assert not names & {"onnx", "onnx_graphsurgeon"}


def test_only_ir_imports_graphsurgeon() -> None:
    users = {m for m, path in FILES.items() for _, name in _imports(path) if name.split(".")[0] == "onnx_graphsurgeon"}
    assert {u.partition(".")[0] for u in users} == {"ir"}


@pytest.mark.parametrize("module", list(FILES))
def test_no_second_copies(module: str) -> None:
    """`import passes` works in a checkout and makes second copies of every class."""
    assert not [n for _, n in _imports(FILES[module]) if n.split(".")[0] in ("passes", "runtime_ops", "tests")]


@pytest.mark.parametrize("module", COMPILER)
def test_no_print_outside_the_command_line(module: str) -> None:
    if module.startswith("commands.") or module == "testing.__main__":
        return
    tree = ast.parse(FILES[module].read_text(encoding="utf-8"))
    calls = [n.lineno for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "print"]
    assert calls == []


@pytest.mark.parametrize("module", [m for m in COMPILER if m.startswith("passes.")])
def test_every_pass_stands_alone(module: str) -> None:
    """One pass class per file."""
    tree = ast.parse(FILES[module].read_text(encoding="utf-8"))
    classes = [
        n.name
        for n in tree.body
        if isinstance(n, ast.ClassDef) and any(getattr(b, "id", "") == "Pass" for b in n.bases)
    ]
    assert len(classes) <= 1
    if classes:
        name = "".join(f"_{c.lower()}" if c.isupper() else c for c in classes[0]).lstrip("_")
        assert module.split(".")[0::2] == ["passes", name], "a pass stands in the folder of its stage, by its name"
