"""What the documentation shows, runs: every Python block, every `$ frazil` line, and the bytes of the format page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from documents import DOCS, PAGES, ROOT, blocks, page_id

from frazil.core.disk import LocalDisk
from frazil.log.format.frames import FORMAT_VERSION, MARK_PAYLOAD, unpack_frame
from frazil.log.read.segment_reader import SegmentReader
from frazil.log.write.segment import Segment

FORMAT_PAGE = DOCS / "formats" / "log.md"
EXAMPLE = DOCS / "formats" / "example.wal"
BIN = Path(sys.executable).parent

HANG_SECONDS = 240
"""Programs and commands that take longer hang. A page that starts a server takes over a minute on a busy machine."""

_LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def _environment() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FRAZIL_")}
    return {**inherited, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONWARNINGS": "error"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=page_id)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    """All blocks of a page are one program; blank lines keep the line numbers of the page."""
    program = ""
    for block in blocks(page, "python"):
        program += "\n" * (block.line - 1 - program.count("\n")) + block.text
    script = tmp_path / f"{page.stem}.py"
    script.write_text(program, encoding="utf-8")
    (tmp_path / EXAMPLE.name).write_bytes(EXAMPLE.read_bytes())
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=_environment(), capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert done.returncode == 0, f"{page_id(page)}:\n{done.stdout}\n{done.stderr}"


def _commands(page: Path) -> list[str]:
    """The lines behind `$ ` in console blocks; a backslash at the end goes on with the next."""
    commands = []
    for block in blocks(page, "console", "bash"):
        joined = block.text.replace("\\\n", " ")
        commands += [line[2:] for line in joined.splitlines() if line.startswith("$ ") and "frazil" in line]
    return commands


@pytest.mark.timeout(900)  # of a page; each of its commands has the limit below
@pytest.mark.parametrize("page", [page for page in PAGES if _commands(page)], ids=page_id)
def test_the_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    """Each command in its turn, in one folder, so that a page tells a story."""
    for file in DOCS.glob("formats/*.wal"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    for command in _commands(page):
        done = subprocess.run(
            ["bash", "-c", f"set -euo pipefail; {command}"],
            cwd=tmp_path, env=_environment(), capture_output=True, text=True, timeout=HANG_SECONDS,
        )  # fmt: skip
        assert done.returncode == 0, f"$ {command}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=page_id)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for target in _LINK.findall(_CODE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page_id(page)} links to {target}"
        if anchor:
            assert anchor in _anchors(file), f"{page_id(page)} links to {target}"


def _anchors(page: Path) -> set[str]:
    headings = _HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    missing = [page for page in DOCS.rglob("*.md") if str(page.relative_to(DOCS)) not in navigation]
    assert not missing


def test_decisions_are_short_and_have_their_three_parts() -> None:
    decisions = sorted((DOCS / "decisions").glob("0*.md"))
    index = (DOCS / "decisions" / "index.md").read_text(encoding="utf-8")
    assert [path.name[:4] for path in decisions] == [f"{number:04d}" for number in range(1, len(decisions) + 1)]
    for path in decisions:
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) < 40, path.name
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"], path.name
        assert path.name in index


def test_the_hex_of_the_format_page_is_that_of_the_example() -> None:
    data = EXAMPLE.read_bytes()
    lines = [line for block in blocks(FORMAT_PAGE, "hex") for line in block.text.splitlines()]
    assert len(lines) >= 8
    for line in lines:
        position = int(line[:8], 16)
        shown = bytes.fromhex(line[10:57])
        assert data[position : position + 16] == shown, line


def test_the_frames_of_the_format_page_are_those_of_the_example() -> None:
    data = memoryview(EXAMPLE.read_bytes())
    found, at = [], 0
    while at < len(data):
        frame = unpack_frame(data, at, at)
        kind = "mark" if frame.payload == MARK_PAYLOAD else "batch" if found else "schema"
        found.append(f"| {frame.position} | {kind} | {frame.offset} | {len(frame.payload)} |")
        at = frame.end_position
    assert "\n".join(found) in FORMAT_PAGE.read_text(encoding="utf-8")


def test_the_example_reads_as_the_format_page_says() -> None:
    """A segment of format version 1, kept for good: whoever changes the bytes must see that old ones still read."""
    assert FORMAT_VERSION == 1
    size = EXAMPLE.stat().st_size
    reader = SegmentReader(LocalDisk(), Segment(0, EXAMPLE, size, size, sealed=True))
    batches = list(reader)
    reader.close()
    assert reader.head.topic == "/default/orders"
    assert [batch.offset for batch in batches] == [0, 1]
    rows = [row for batch in batches for row in batch.rows.to_pylist()]
    assert [(row["_key"], row["_payload"]) for row in rows] == [
        (b"anna", b"tea"), (None, b"rye bread"), (None, b"plum jam"),
    ]  # fmt: skip
