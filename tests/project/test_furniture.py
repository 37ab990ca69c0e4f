"""Files about the project agree with each other, and what GitHub reads is what GitHub accepts.

What these would catch: a version or an address changed in one place, a workflow or form that is no valid YAML, an issue
form without the keys that GitHub needs, an API that lost something in silence.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import rnnqc

ROOT = Path(__file__).resolve().parents[2]
GITHUB = ROOT / ".github"
TEXTS = ("*.md", "*.cff", "*.toml", "*.yml", "docs/**/*.md", "docs/**/*.yml", ".github/**/*.yml", ".github/**/*.md")


def urls() -> dict[str, str]:
    """`[project.urls]`."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8").split("[project.urls]")[1].split("\n[")[0]
    return dict(re.findall(r'^(\w+) = "(.+)"$', text, re.M))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_one_address_everywhere() -> None:
    """Every text uses the repository address of pyproject.toml, and its site."""
    home, site = urls()["Repository"], urls()["Documentation"]
    files = [p for pattern in TEXTS for p in ROOT.glob(pattern)]
    assert ROOT / "CITATION.cff" in files
    for path in files:
        text = path.read_text(encoding="utf-8")
        for found in re.findall(r"https://github\.com/[\w.-]+/rnnqc\b", text):
            assert found == home, path
        for found in re.findall(r"https://[\w-]+\.github\.io/\w+/", text):
            assert found == site, path


def test_citation_is_of_this_version() -> None:
    citation = read(ROOT / "CITATION.cff")
    assert citation["version"] == rnnqc.runtime_ops.__version__
    assert citation["repository-code"] == urls()["Repository"] and citation["url"] == urls()["Documentation"]
    assert {"cff-version", "message", "title", "authors", "license"} <= set(citation)


def test_changelog_has_this_version() -> None:
    """Its first release is the version at hand: dated, or not yet released."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version, date = re.findall(r"^## \[(.+?)\] - (.+)$", text, re.M)[0]
    assert version == rnnqc.runtime_ops.__version__
    assert re.fullmatch(r"Unreleased|\d{4}-\d{2}-\d{2}", date)


@pytest.mark.parametrize("path", sorted(GITHUB.glob("workflows/*.yml")), ids=lambda p: p.name)
def test_workflows_can_be_read(path: Path) -> None:
    """YAML reads the key `on` as true. Every job has a machine and a limit of time, every step does something."""
    workflow = read(path)
    assert {"name", True, "jobs"} <= set(workflow)
    for name, job in workflow["jobs"].items():
        assert "runs-on" in job, name
        assert all(("run" in step) != ("uses" in step) for step in job["steps"]), name
        for step in job["steps"]:
            for script in re.findall(r"\b(scripts/[\w./]+)", step.get("run", "")):
                assert (ROOT / script).exists(), script


@pytest.mark.parametrize("name", ["bug", "accuracy", "feature"])
def test_issue_forms_have_what_github_needs(name: str) -> None:
    form = read(GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml")
    assert {"name", "description", "body"} <= set(form)
    fields = [f for f in form["body"] if f["type"] != "markdown"]
    assert len({f["id"] for f in fields}) == len(fields) > 0
    assert all(f["attributes"]["label"] for f in fields)


@pytest.fixture(name="api", scope="module")
def _api() -> ModuleType:
    pytest.importorskip("griffe", reason="needs griffe (pip install 'rnnqc[docs]'): the check of the API is NOT tested")
    spec = importlib.util.spec_from_file_location("api_changes", ROOT / "scripts" / "api_changes.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["api_changes"] = module
    spec.loader.exec_module(module)
    return module


PACKAGE = {
    "__init__.py": "from rnnqc.inner import lower, Model\n__all__ = ['Model', 'lower']\n",
    "inner.py": (
        "def lower(model, recipe=None): ...\ndef helper(a): ...\nclass Model:\n    def load(self, path): ...\n"
        "    def _hidden(self): ...\n"
    ),
    "passes/__init__.py": "__all__ = []\n",
    "runtime_ops/__init__.py": "__all__ = []\n",
}


@pytest.mark.parametrize(
    ("file", "before", "after", "found"),
    [
        ("inner.py", "model, recipe=None", "model, recipe", "recipe"),
        ("inner.py", "model, recipe=None", "model", "recipe"),
        ("inner.py", "load(self, path)", "open(self, path)", "load"),
        ("__init__.py", "'Model', ", "", "Model"),
        ("inner.py", "helper(a)", "helper(a, b)", ""),
        ("inner.py", "_hidden(self)", "_hidden(self, a)", ""),
        ("inner.py", "model, recipe=None", "model, recipe=None, form=None", ""),
    ],
    ids=["now required", "parameter", "method", "export", "inner function", "private method", "added"],
)
def test_api_changes_are_found(api: ModuleType, tmp_path: Path, file: str, before: str, after: str, found: str) -> None:
    """Changes of what programs use are reported; changes of internals, and additions, are not."""
    loaded = []
    for version in ("old", "new"):
        for name, text in PACKAGE.items():
            path = tmp_path / version / "rnnqc" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            changed = version == "new" and name == file
            path.write_text(text.replace(before, after) if changed else text, encoding="utf-8")
        loaded.append(api.load(tmp_path / version))
    lines = api.changes(*loaded)
    assert [found in line for line in lines] == ([True] if found else []), lines


def test_api_of_this_checkout_can_be_read(api: ModuleType) -> None:
    """Every name that rnnqc exports is found by reading sources, through the folders that links lead to, too."""
    paths = api.exported(api.load(ROOT))
    assert {f"rnnqc.{name}" for name in rnnqc.__all__} <= paths
    assert {f"rnnqc.passes.{name}" for name in rnnqc.passes.__all__} <= paths
