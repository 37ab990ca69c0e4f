"""Hooks of mkdocs that add pages from outside docs/ to the site.

* `command_line.md`, generated from the parser of the command `rnnqc`;
* changelog, contributing guide, security policy and code of conduct, which are in the folder above docs/;
* links: a page named in backticks, such as `docs/verify.md` or `verify.md`, links to that page; a link to a file
  outside docs/, or a path of the repository in backticks, links to the file in the repository.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import command_line  # noqa: E402 - a file beside this one, which mkdocs does not import as part of a package

ABOVE = {
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "code_of_conduct.md": "CODE_OF_CONDUCT.md",
}
"""Pages of the site that come from files above docs/."""
FENCE = re.compile(r"(^```.*?^```[^\n]*$)", re.M | re.S)
NAMED_PAGE = re.compile(r"(?<!\[)`(?:docs/)?(\w+\.md)`(?:, \*([^*]+)\*)?")
NAMED_PATH = re.compile(
    r"(?<!\[)`((?:benchmarks|examples|fuzz|models|passes|rnnqc|runtime_ops|scripts|tests)/[\w./-]*)`"
)
LINK = re.compile(r"(\]\()(?!https?://|#)([^)\s#]+)")


def linked(text: str, pages: set[str], repository: str, above: bool = False) -> str:
    """Returns a page's text with links for the site.

    Args:
        text: Markdown.
        pages: Names of all pages of the site.
        repository: Address of the repository, to which paths are appended.
        above: Whether the page is in the folder above docs/, where its links start.
    """
    names = {path: page for page, path in ABOVE.items()}

    def to_page(match: re.Match[str]) -> str:
        page, section = match.groups()
        if page not in pages:
            return match[0]
        words = f"{page.removesuffix('.md')}" + (f", {section}" if section else "")
        return f"[{words}]({page})"

    def to_file(match: re.Match[str]) -> str:
        exists = (ROOT / match[1]).exists()
        return f"[`{match[1]}`]({repository}/blob/main/{match[1]})" if exists else match[0]

    def moved(match: re.Match[str]) -> str:
        opening, target = match.groups()
        path = target if above else target.removeprefix("../") if target.startswith("../") else f"docs/{target}"
        if path in names:
            return opening + names[path]
        if path.startswith("docs/"):
            return opening + path.removeprefix("docs/")
        return f"{opening}{repository}/blob/main/{path}"

    def outside(part: str) -> str:
        return NAMED_PATH.sub(to_file, NAMED_PAGE.sub(to_page, LINK.sub(moved, part)))

    return "".join(part if FENCE.fullmatch(part) else outside(part) for part in FENCE.split(text))


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that are not files of docs/."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "command_line.md", content=command_line.page()))
    for page, path in ABOVE.items():
        files.append(File.generated(config, page, content=(ROOT / path).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrites the links of one page."""
    pages = {f.src_uri for f in files.documentation_pages()}
    return linked(markdown, pages, config.repo_url.rstrip("/"), page.file.src_uri in ABOVE)
