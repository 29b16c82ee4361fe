"""Frames of few messages: byte for byte what Arrow writes, whatever the messages hold."""

from __future__ import annotations

import os

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.core.rows import ENVELOPE, Origin, message_batch
from frazil.log.group import MessageRow, Part
from frazil.log.small import SMALL_BYTES_MAX, SMALL_ROWS_MAX, is_small, small_batch

TIME_US = 1_234_567
numbers = st.integers(0, 2**31 - 1)
origins = st.builds(
    Origin,
    st.none() | st.text(max_size=9),
    st.none() | st.integers(-(2**60), 2**60),
    st.none() | st.integers(0, 2**63 - 1),
    st.none() | numbers,
)
pairs = st.lists(st.tuples(st.text(max_size=9), st.text(max_size=9)), min_size=1, max_size=3)
rows = st.tuples(st.binary(max_size=70), st.none() | st.binary(max_size=9), st.none() | pairs, st.none() | origins)


def as_arrow_writes(messages: list[MessageRow]) -> bytes:
    payloads, keys, attributes, origins = zip(*messages, strict=True)
    return bytes(message_batch(payloads, keys, attributes, origins, TIME_US).serialize())


@given(st.lists(rows, min_size=1, max_size=SMALL_ROWS_MAX))
def test_a_few_messages_are_written_as_arrow_writes_them(messages: list[MessageRow]) -> None:
    made = small_batch(messages, TIME_US)
    assert made == as_arrow_writes(messages)
    pa.ipc.read_record_batch(pa.py_buffer(made), ENVELOPE).validate(full=True)


@given(rows)
def test_one_message_is_written_as_arrow_writes_it(message: MessageRow) -> None:
    assert small_batch([message], TIME_US) == as_arrow_writes([message])


@pytest.mark.parametrize("length", [*range(70), 255, 256, 1024, 4095, 65536])
def test_a_bare_payload_of_any_length(length: int) -> None:
    message = (os.urandom(length), None, None, None)
    assert small_batch([message], TIME_US) == as_arrow_writes([message])


def test_many_or_large_messages_are_left_to_arrow() -> None:
    part = Part(None)
    assert not is_small(part)
    part.messages += [(b"", None, None, None)] * SMALL_ROWS_MAX
    assert is_small(part)
    part.messages.append((b"", None, None, None))
    assert not is_small(part)
    part.messages, part.size_bytes = part.messages[:1], SMALL_BYTES_MAX + 1
    assert not is_small(part)
