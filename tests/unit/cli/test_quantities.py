"""Sizes and spans as people write them."""

from __future__ import annotations

import pytest

from frazil.cli.terminal.output import bytes_shown, plural, time_shown
from frazil.cli.terminal.quantities import parse_bytes, parse_duration_ms
from frazil.core.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "count"),
    [("512", 512), ("1k", 1024), ("64KiB", 65_536), ("1.5MiB", 1_572_864), ("10GiB", 10 * 2**30), ("1GB", 10**9)],
)
def test_sizes_have_binary_and_decimal_units(text: str, count: int) -> None:
    assert parse_bytes(text, "--x") == count


@pytest.mark.parametrize(
    ("text", "count"), [("500ms", 500), ("30s", 30_000), ("15m", 900_000), ("12h", 43_200_000), ("2w", 1_209_600_000)]
)
def test_times_need_a_unit(text: str, count: int) -> None:
    assert parse_duration_ms(text, "--x") == count


@pytest.mark.parametrize("text", ["", "x", "1XiB", "-1", "1e9", "0", "\u0661KiB", "1" * 30])
def test_anything_else_is_refused_with_the_option_named(text: str) -> None:
    with pytest.raises(InvalidInput, match="--x"):
        parse_bytes(text, "--x")


def test_figures_are_shown_for_people() -> None:
    assert (bytes_shown(10), bytes_shown(2048), bytes_shown(None)) == ("10 B", "2.0 KiB", "-")
    assert (plural(1, "row"), plural(2, "row")) == ("1 row", "2 rows")
    assert time_shown(0) == "1970-01-01T00:00:00.000000Z"
