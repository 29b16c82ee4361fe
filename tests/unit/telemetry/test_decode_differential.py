"""Every value of every request is in its rows, and a request that is not valid is an error: compared with a loop."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from otlp_comparison import assert_same_as_reference
from otlp_random import damaged, oddly_written, random_request

from frazil.telemetry.signals import Signal

seeds = st.integers(0, 2**64)
signals = st.sampled_from(Signal)


@given(signals, seeds, st.integers(0, 5))
def test_random_requests_are_rows_with_every_value(signal: Signal, seed: int, count: int) -> None:
    rng = random.Random(seed)
    assert_same_as_reference(signal, [random_request(signal, rng).SerializeToString() for _ in range(count)])


@given(signals, seeds, st.integers(1, 4))
def test_oddly_written_requests_are_what_protobuf_says(signal: Signal, seed: int, count: int) -> None:
    rng = random.Random(seed)
    assert_same_as_reference(signal, [oddly_written(random_request(signal, rng), rng) for _ in range(count)])


@given(signals, seeds, st.integers(1, 8))
def test_damaged_requests_are_rows_or_errors(signal: Signal, seed: int, count: int) -> None:
    rng = random.Random(seed)
    whole = [random_request(signal, rng).SerializeToString() for _ in range(count)]
    assert_same_as_reference(signal, [damaged(raw, rng) if rng.random() < 0.7 else raw for raw in whole])


@pytest.mark.parametrize("signal", Signal)
def test_no_request_is_no_row(signal: Signal) -> None:
    assert_same_as_reference(signal, [])
    assert_same_as_reference(signal, [b"", b""])
