"""What the documentation tests share: where the pages are, and their fenced blocks and tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]

_FENCE = re.compile(r"^( *)```(\w+)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    line: int
    language: str
    text: str


def blocks(page: Path, *languages: str) -> list[Block]:
    """The fenced blocks of a page in these languages, in order."""
    source = page.read_text(encoding="utf-8")
    return [
        Block(source.count("\n", 0, match.start()) + 2, match[2], match[3])
        for match in _FENCE.finditer(source)
        if match[2] in languages
    ]


def table_rows(page: Path, heading: str) -> Iterator[list[str]]:
    """The cells of every table row below a heading, up to the next heading of the same or a higher level."""
    level = heading.split(" ")[0]
    inside = False
    for line in page.read_text(encoding="utf-8").splitlines():
        if line == heading:
            inside = True
        elif inside and line.startswith("#") and len(line.split(" ")[0]) <= len(level):
            return
        elif inside and line.startswith("| `"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))
