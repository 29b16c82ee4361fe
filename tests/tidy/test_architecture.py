"""The pages that name modules name ones that are there: the architecture, the formats, and how to contribute."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documents import DOCS, ROOT, page_id, table_rows

SOURCE = ROOT / "src" / "frazil"
ARCHITECTURE, CONTRIBUTING = DOCS / "architecture.md", ROOT / "CONTRIBUTING.md"
MODULE = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|toml|proto))`")
FOLDER = re.compile(r"(?<![\w/])([a-z_]+)/")
CHANGES = 10


def _modules(page: Path) -> list[str]:
    return MODULE.findall(page.read_text(encoding="utf-8"))


def _is_there(name: str) -> bool:
    return (ROOT / name).is_file() or (SOURCE / name).is_file()


def _rooms() -> set[str]:
    return {path.parent.name for path in SOURCE.glob("*/__init__.py")}


@pytest.mark.parametrize("page", [ARCHITECTURE, CONTRIBUTING, *sorted((DOCS / "formats").glob("*.md"))], ids=page_id)
def test_every_module_that_a_page_names_is_there(page: Path) -> None:
    assert not [name for name in _modules(page) if not _is_there(name)]


def test_the_architecture_names_many_modules_and_every_room_with_its_folders() -> None:
    assert len(_modules(ARCHITECTURE)) > 30
    rooms = {row[0].strip("`/"): set(FOLDER.findall(row[1])) for row in table_rows(ARCHITECTURE, "## Layers")}
    assert set(rooms) == _rooms()
    assert not [(room, one) for room, named in rooms.items() for one in named if not (SOURCE / room / one).is_dir()]


def test_contributing_draws_every_room_with_its_folders() -> None:
    text = CONTRIBUTING.read_text(encoding="utf-8")
    lines = re.findall(
        r"^  ([a-z]+)/ +(.*)$", text.partition("src/frazil/\n")[2].partition("\ntests/")[0], re.MULTILINE
    )
    rooms = {room: set(FOLDER.findall(line)) for room, line in lines}
    assert set(rooms) == _rooms()
    assert not [(room, one) for room, named in rooms.items() for one in named if not (SOURCE / room / one).is_dir()]


def test_the_layers_on_the_page_are_those_that_are_kept() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (kept,) = re.findall(r"^layers = \[(.*?)\]", project, re.MULTILINE | re.DOTALL)
    layers = [layer.replace("frazil.", "") for layer in re.findall(r'"([^"]+)"', kept)]
    for page in (ARCHITECTURE, CONTRIBUTING):
        assert " > ".join(layers) in page.read_text(encoding="utf-8")


def test_the_picture_is_whole_and_fetches_nothing() -> None:
    picture = (DOCS / "architecture.svg").read_text(encoding="utf-8")
    assert "(architecture.svg)" in ARCHITECTURE.read_text(encoding="utf-8")
    rooms = re.findall(r'font-weight="bold"[^>]*>([^<]+)<', picture)
    assert {"node", "broker", "registry", "log", "lake", "meta"} <= set(rooms)
    assert set(re.findall(r"https?://[^\"' ]+", picture)) == {"http://www.w3.org/2000/svg"}


def test_contributing_says_which_file_to_open_for_ten_changes() -> None:
    (_, section) = CONTRIBUTING.read_text(encoding="utf-8").split("## Which file to open\n")
    changes = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("| ")][1:]
    assert len(changes) == CHANGES
    for change in changes:
        named = re.findall(r"`([^`]+\.py)`", change)
        assert named, change
        assert not [name for name in named if not _is_there(name)], change
