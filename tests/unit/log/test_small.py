"""Frames of few messages: byte for byte what Arrow writes, whatever the messages hold."""

from __future__ import annotations

import os

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.core.rows import ENVELOPE, Origin, message_batch
from frazil.log.format.fast_encode import (
    SMALL_BYTES_MAX,
    SMALL_ROWS_MAX,
    SMALL_ROWS_WITH_ATTRIBUTES_MAX,
    small_batch,
    small_rows,
)
from frazil.log.format.frames import pack_rows
from frazil.log.write.group import MessageRow, Part

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


texts = st.just(b"") | st.binary(max_size=300)
"""What a frame says of producers."""


def as_arrow_writes(messages: list[MessageRow], sent: bytes = b"") -> bytes:
    payloads, keys, attributes, origins = zip(*messages, strict=True)
    return bytes(pack_rows(message_batch(payloads, keys, attributes, origins, TIME_US), sent))


@given(st.lists(rows, min_size=1, max_size=SMALL_ROWS_MAX), texts)
def test_a_few_messages_are_written_as_arrow_writes_them(messages: list[MessageRow], sent: bytes) -> None:
    made = small_batch(messages, TIME_US, sent)
    assert made == as_arrow_writes(messages, sent)
    pa.ipc.read_record_batch(pa.py_buffer(made), ENVELOPE).validate(full=True)


@given(rows, texts)
def test_one_message_is_written_as_arrow_writes_it(message: MessageRow, sent: bytes) -> None:
    assert small_batch([message], TIME_US, sent) == as_arrow_writes([message], sent)


@pytest.mark.parametrize("length", [*range(70), 255, 256, 1024, 4095, 65536])
def test_a_bare_payload_of_any_length(length: int) -> None:
    message = (os.urandom(length), None, None, None)
    assert small_batch([message], TIME_US) == as_arrow_writes([message])


def test_many_or_large_messages_are_left_to_arrow() -> None:
    part, other = Part(None), Part(None)
    assert not small_rows([part])
    part.messages += [(b"", None, None, None)] * SMALL_ROWS_MAX
    assert small_rows([part]) == part.messages
    other.messages.append((b"a", None, None, None))
    assert not small_rows([part, other])
    part.messages.pop()
    assert small_rows([part, other]) == [*part.messages, *other.messages]
    other.size_bytes = SMALL_BYTES_MAX + 1
    assert not small_rows([part, other])
    assert not small_rows([other])
    tagged = Part(None, [(b"", None, [("a", "b")], None)] * SMALL_ROWS_WITH_ATTRIBUTES_MAX)
    assert small_rows([tagged]) == tagged.messages
    tagged.messages.append(tagged.messages[0])
    assert not small_rows([tagged])
    batch = Part(None, message_batch([b"a"], [None], [None], [None], TIME_US).remove_column(0))
    assert not small_rows([part, batch])
    assert not small_rows([batch])
