"""The documentation site: navigation, links that hooks make, the generated page of commands, and a strict build.

What these would catch: a page that no menu leads to, a menu entry without a page, an option that the reference of the
command line leaves out, a link that a build refuses. The build itself needs mkdocs (`pip install 'rnnqc[docs]'`).
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import rnnqc
from rnnqc.commands.program import _parsers

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def script(name: str) -> ModuleType:
    """A file of scripts/ as a module."""
    if str(ROOT / "scripts") not in sys.path:
        sys.path.append(str(ROOT / "scripts"))
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(name="hooks", scope="module")
def _hooks() -> ModuleType:
    return script("site_hooks")


def test_menu_has_every_page_once(hooks: ModuleType) -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:")[1]
    entries = re.findall(r"(\w+\.md)\b", menu)
    assert len(entries) == len(set(entries))
    assert set(entries) == {p.name for p in DOCS.glob("*.md")} | set(hooks.ABOVE) | {"command_line.md"}


def test_overview_leads_to_every_page() -> None:
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    assert {p.name for p in DOCS.glob("*.md")} - set(re.findall(r"\((\w+\.md)", text)) == {"index.md"}


def test_overview_leads_to_the_command_line_without_the_site() -> None:
    """The page exists only on the site; in the repository the overview links to the script that generates it."""
    (line,) = (t for t in (DOCS / "index.md").read_text(encoding="utf-8").splitlines() if "(command_line.md)" in t)
    others = [target for target in re.findall(r"\]\(([^)#]+)", line) if target != "command_line.md"]
    assert others and all((DOCS / target).exists() for target in others)
    made = subprocess.run([sys.executable, DOCS / others[0]], capture_output=True, text=True, check=True)
    assert "rnnqc lower" in made.stdout


def test_command_line_has_every_option() -> None:
    """Of every command, with its help text."""
    page = script("command_line").page()
    _, commands = _parsers()
    sections = dict(re.findall(r"^## rnnqc (\w+)\n(.*?)(?=^## |\Z)", page, re.M | re.S))
    assert sections.keys() == commands.keys()
    for name, command in commands.items():
        for action in command._actions:
            for option in action.option_strings:
                assert option in sections[name] or action.dest == "help", (name, option)
    assert "<code>--form fused&#124;integer" in sections["lower"]


def test_python_api_has_every_name() -> None:
    text = (DOCS / "python_api.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^::: rnnqc\.(\w+)$", text, re.M)) == set(rnnqc.__all__) - {"__version__"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see `docs/verify.md`", "see [verify](verify.md)"),
        ("(`recovery.md`, *Other cells*)", "([recovery, Other cells](recovery.md))"),
        ("[`verify.md`](verify.md#time)", "[`verify.md`](verify.md#time)"),
        ("`nothing.md` and `rnnqc/nothing.py`", "`nothing.md` and `rnnqc/nothing.py`"),
        ("`rnnqc/cli.py`", "[`rnnqc/cli.py`](HOME/blob/main/rnnqc/cli.py)"),
        ("[c](../CONTRIBUTING.md)", "[c](contributing.md)"),
        ("[c](../models/README.md)", "[c](HOME/blob/main/models/README.md)"),
        ("[c](https://example.org) [d](#here)", "[c](https://example.org) [d](#here)"),
        ("```\ncat `docs/verify.md`\n```\n", "```\ncat `docs/verify.md`\n```\n"),
    ],
)
def test_links_of_pages(hooks: ModuleType, text: str, expected: str) -> None:
    assert hooks.linked(text, {"verify.md", "recovery.md"}, "HOME") == expected


def test_links_of_files_above(hooks: ModuleType) -> None:
    """Their links start in the folder of the repository."""
    assert hooks.linked(
        "[a](docs/verify.md#time) [b](SECURITY.md) [c](LICENSE)", {"verify.md"}, "HOME", above=True
    ) == ("[a](verify.md#time) [b](security.md) [c](HOME/blob/main/LICENSE)")


def test_site_is_built(tmp_path: Path) -> None:
    """Without a warning: dead links, missing anchors and pages outside the menu end the build."""
    pytest.importorskip("mkdocs", reason="needs mkdocs (pip install 'rnnqc[docs]'): the site is NOT built")
    pytest.importorskip("mkdocstrings", reason="needs mkdocstrings: the site is NOT built")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path / "site"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "site" / "command_line" / "index.html").read_text(encoding="utf-8")
    assert "--save-formats" in page
    api = (tmp_path / "site" / "python_api" / "index.html").read_text(encoding="utf-8")
    assert 'id="rnnqc.lower"' in api and "calibration" in api
