"""The README's figures are those of one recorded run, and its links work on PyPI.

What these would catch: a figure changed by hand, a new run that did not reach the README or the picture, a link that
PyPI cannot follow.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = """## Whole models
| one call | float | `quantize_dynamic` | rnnqc | rnnqc stock |
|---|---|---|---|---|
| some | 100 us, 2000 kB | 1.50x, 0.25, 20 dB | **3.10x**, 0.30, 35 dB | 0.20x |
| other | 7 us, 10 kB | - | 1.00x, 1.27, equal | does not run it |

## Next
"""


@pytest.fixture(name="headline", scope="module")
def _headline() -> ModuleType:
    return script("headline")


def script(name: str) -> ModuleType:
    """A file of scripts/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_table_and_picture_are_of_the_recorded_run() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "headline.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_figures_are_read_from_the_columns_they_stand_in(headline: ModuleType) -> None:
    """A column that is added or moved does not shift figures; ways that do not run a model are left out."""
    run = headline.results(PAGE)
    assert run["some"].kilobytes == 2000
    assert run["some"].ways["rnnqc"] == headline.Way(3.1, 0.3, "35 dB")
    assert run["some"].ways["rnnqc stock"] == headline.Way(0.2)
    assert set(run["other"].ways) == {"rnnqc"}


def test_a_cell_that_is_no_figure_is_refused(headline: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"0\.25 of it"):
        headline.results(PAGE.replace("1.50x, 0.25, 20 dB", "1.50x, 0.25 of it"))


def test_picture_is_valid_and_says_what_it_shows() -> None:
    root = ElementTree.parse(ROOT / "docs" / "overview.svg").getroot()
    title = root.find("{http://www.w3.org/2000/svg}title")
    assert title is not None and "same bits" in (title.text or "")


def test_every_link_of_the_readme_is_absolute_on_pypi() -> None:
    """Each leads to a file of the repository; pictures to its content, which a page of GitHub is not."""
    pypi = script("pypi_readme")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    home = pypi.repository()
    made = pypi.absolute(readme, home, "v1")
    targets = re.findall(r"\]\(([^)\s]+)\)", made)
    assert len(targets) == len(re.findall(r"\]\(([^)\s]+)\)", readme)) > 20
    for target in targets:
        assert target.startswith("https://"), target
        if target.startswith(home + "/blob/v1/"):
            assert (ROOT / target.removeprefix(home + "/blob/v1/").partition("#")[0]).exists(), target
    pictures = re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", made)
    assert pictures and all(p.startswith("https://raw.githubusercontent.com/") for p in pictures)


def test_links_that_are_absolute_already_stay() -> None:
    pypi = script("pypi_readme")
    text = "[a](https://example.org/x) [b](#below) [c](docs/x.md#y) ![d](e.png)"
    assert pypi.absolute(text, "https://github.com/o/r", "main") == (
        "[a](https://example.org/x) [b](#below) [c](https://github.com/o/r/blob/main/docs/x.md#y) "
        "![d](https://raw.githubusercontent.com/o/r/main/e.png)"
    )
