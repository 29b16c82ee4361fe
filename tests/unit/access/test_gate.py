"""The `authorization` of a call, which all doors read by one rule."""

from __future__ import annotations

import pytest

from frazil.core.errors import Unauthenticated
from frazil.node.access.gate import HEADER_BYTES_MAX, only_header

LARGEST = "B" * HEADER_BYTES_MAX


@pytest.mark.parametrize(
    ("given", "found"),
    [([], None), (["Bearer a"], "Bearer a"), ([b"Bearer \xe4"], "Bearer ä"), ([LARGEST], LARGEST)],
)
def test_the_only_header_is_what_the_call_presents(given: list[str | bytes], found: str | None) -> None:
    assert only_header(given) == found


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["B" * (HEADER_BYTES_MAX + 1)], f"more than {HEADER_BYTES_MAX} bytes"),
        ([b"B" * HEADER_BYTES_MAX, b"B"], f"more than {HEADER_BYTES_MAX} bytes"),
        (["Bearer a", "Bearer a"], "more than once"),
    ],
)
def test_a_large_or_repeated_header_is_refused(given: list[str | bytes], problem: str) -> None:
    with pytest.raises(Unauthenticated, match=problem):
        only_header(given)
