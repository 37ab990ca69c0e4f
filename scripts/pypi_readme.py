"""Makes the links of a README absolute, for PyPI, which shows it without the files it links to.

    python scripts/pypi_readme.py README.md --ref v0.2.0       changes the file in place

Pictures link to the raw file, everything else to its page in the repository of `[project.urls]`, both at one tag,
branch or commit, so that the README of a release shows the files of that release.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)")


def repository() -> str:
    """Returns the repository's address from pyproject.toml."""
    match = re.search(r'^Repository = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    if match is None:
        sys.exit('pyproject.toml: [project.urls] has no line Repository = "https://..."; PyPI needs it')
    return match[1]


def absolute(text: str, home: str, ref: str) -> str:
    """Returns a Markdown text with absolute instead of relative links."""
    raw = home.replace("https://github.com/", "https://raw.githubusercontent.com/")

    def replace(match: re.Match[str]) -> str:
        picture, words, target = match.groups()
        base = f"{raw}/{ref}" if picture else f"{home}/blob/{ref}"
        return f"{picture}[{words}]({base}/{target})"

    return LINK.sub(replace, text)


def main() -> None:
    """Changes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("readme", type=Path)
    parser.add_argument("--ref", default="main", help="tag, branch or commit; default main")
    options = parser.parse_args()
    text = options.readme.read_text(encoding="utf-8")
    options.readme.write_text(absolute(text, repository(), options.ref), encoding="utf-8")


if __name__ == "__main__":
    main()
