"""Each guarantee names at least one test, and each test that is named is there."""

from __future__ import annotations

import re

from documents import ROOT

from frazil.core.settings import AckLevel


def test_every_guarantee_names_tests_that_are_there() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    parts = re.split(r"^\*\*G(\d+)\. ", text, flags=re.MULTILINE)[1:]
    numbers, bodies = parts[::2], parts[1::2]
    assert [int(number) for number in numbers] == list(range(1, len(numbers) + 1))
    for number, body in zip(numbers, bodies, strict=True):
        named = re.findall(r"`(tests/[^`]+\.py)`", body)
        assert named, f"G{number} names no test"
        assert not [path for path in named if not (ROOT / path).is_file()], f"G{number}"


def test_each_row_of_the_table_of_ack_levels_names_tests_that_are_there() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8").partition("## What each ack level can lose")[2]
    rows = dict(re.findall(r"^\| `(\w+)` \|(.*)$", text, flags=re.MULTILINE))
    assert list(rows) == [level.value for level in AckLevel]
    for level, row in rows.items():
        tested = re.findall(r"`(tests/[^`]+\.py)`: ((?:`test_\w+`(?:, )?)+)", row)
        assert tested, level
        for path, names in tested:
            source = (ROOT / path).read_text(encoding="utf-8")
            assert not [name for name in re.findall(r"test_\w+", names) if f"def {name}(" not in source], (level, path)
