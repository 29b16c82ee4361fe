"""Calls that are wrong: a typed error each, and not a byte on the disk changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import frazil
from frazil import (
    BatchTooLarge,
    InvalidInput,
    InvalidName,
    InvalidPosition,
    MessageTooLarge,
    OffsetOutOfRange,
    Outgoing,
    SchemaMismatch,
    Settings,
    Storage,
    Topic,
    WalSettings,
)

SCHEMA = pa.schema([pa.field("number", pa.int64(), nullable=False), pa.field("text", pa.string())])
MESSAGE_MAX, BATCH_MAX = 1_000, 20_000
NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001 - that is what is wrong with it


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def storage(folder: Path) -> Iterator[Storage]:
    """Open, with a message in it; afterwards the same bytes must be there, and the storage must still work."""
    wal = WalSettings(message_bytes_max=MESSAGE_MAX, batch_bytes_max=BATCH_MAX)
    with frazil.open(Settings(data=folder, wal=wal)) as storage:
        storage.topic("/default/messages").publish("first")
        storage.topic("/default/typed", schema=SCHEMA).publish_many(rows([1], ["one"]))
        before = files(folder)
        yield storage
        assert files(folder) == before, "a refused call changed the disk"
        assert storage.topic("/default/messages").publish("second") == 1
        assert storage.topic("/default/typed").publish_many(rows([2], ["two"])).start == 1
        assert [message.payload for message in storage.topic("/default/messages").read()] == [b"first", b"second"]


@pytest.fixture
def messages(storage: Storage) -> Topic:
    return storage.topic("/default/messages")


@pytest.fixture
def typed(storage: Storage) -> Topic:
    return storage.topic("/default/typed")


def rows(numbers: Any, texts: Any) -> pa.RecordBatch:
    return pa.record_batch([pa.array(numbers, pa.int64()), pa.array(texts, pa.string())], schema=SCHEMA)


# --- names

NAMES: list[Any] = [
    "", "/", "//", "a", "a/b", "/a", "/a/", "//b", "/a/b/c", "/a/b/", "a/b/c",
    "/../etc", "/a/..", "/./b", "/a/.", "/../../etc/passwd", "/a/../b", "/a/b/../../c",
    "/a/b\0", "/\0/b", "/a/b\n", "/a/\tb", "/a/ b", "/a b/c", "/a/b ", "\\a\\b", "/a\\b/c", "/~trash/x", "/a/~ends",
    "/a/caf\u00e9", "/a/\u043erders", "/a/\uff4frders", "\uff0fa\uff0fb", "/a/\u2024\u2024", "/a/b\u202ec",
    "/a/b\u200bc", "/\u0430/b", "/a/\u0663",
    "/a/" + "x" * 129, "/" + "x" * 129 + "/b", "/a/" + "x" * 100_000, "/a/\ud800", "/a/%2e%2e", "/a/b:c", "/a/b*",
    None, 1, b"/a/b", Path("/a/b"), ["/a/b"], ("a", "b"), {"/a/b"}, True,
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:40])
def test_a_name_that_is_no_name_is_refused_before_it_touches_a_path(storage: Storage, name: Any) -> None:
    calls: list[Callable[[Any], object]] = [
        storage.topic,
        storage.create_topic,
        storage.delete_topic,
        lambda wrong: storage.topic(wrong, create=False),
        lambda wrong: storage.change_schema(wrong, SCHEMA),
        lambda wrong: storage.set_retention(wrong, None),
    ]
    for call in calls:
        with pytest.raises(InvalidName) as refused:
            call(name)
        assert len(refused.value.message) < 500
        refused.value.message.encode("ascii")  # nothing hostile is repeated to a terminal


@pytest.mark.parametrize("name", ["/a/b", "/A.b-c_9/...", "/" + "x" * 128 + "/" + "y" * 128, "/-/_", "/a/..."])
def test_the_strangest_names_that_are_allowed_work(name: str, tmp_path: Path) -> None:
    with frazil.open(tmp_path) as storage:
        assert storage.topic(name).publish("row") == 0
    with frazil.open(tmp_path) as storage:
        assert storage.topics() == [name]
        assert [message.payload for message in storage.topic(name, create=False).read()] == [b"row"]


# --- messages

TOO_LARGE: dict[str, dict[str, Any]] = {
    "payload": {"payload": b"x" * (MESSAGE_MAX + 1)},
    "text": {"payload": "é" * (MESSAGE_MAX // 2 + 1)},
    "key": {"payload": b"", "key": b"x" * (MESSAGE_MAX + 1)},
    "attributes": {"payload": b"", "attributes": {"name": "x" * MESSAGE_MAX}},
    "attributes in UTF-8": {"payload": b"", "attributes": {"name": "é" * (MESSAGE_MAX // 2 + 1)}},
    "all together": {"payload": b"x" * 400, "key": b"x" * 400, "attributes": {"n" * 100: "v" * 101}},
}


@pytest.mark.parametrize("what", TOO_LARGE)
def test_a_message_that_is_too_large_is_refused_with_the_limit(messages: Topic, what: str) -> None:
    with pytest.raises(MessageTooLarge) as refused:
        messages.publish(**TOO_LARGE[what])
    assert refused.value.limit_bytes == MESSAGE_MAX
    assert refused.value.size_bytes > MESSAGE_MAX
    with pytest.raises(MessageTooLarge):
        messages.publish_many([b"fine", Outgoing(**TOO_LARGE[what])])


def test_a_batch_that_is_too_large_is_refused_with_the_limit(messages: Topic, typed: Topic) -> None:
    many = [b"x" * 900] * (BATCH_MAX // 900 + 1)
    for call in [
        lambda: messages.publish_many(many),
        lambda: messages.publish_many(iter(many)),
        lambda: messages.publish_many(pa.record_batch({"_payload": pa.array(many, pa.binary())})),
        lambda: typed.publish_many(rows(range(BATCH_MAX), [None] * BATCH_MAX)),
        lambda: typed.publish_many(rows([1], ["x" * BATCH_MAX])),
    ]:
        with pytest.raises(BatchTooLarge) as refused:
            call()
        assert refused.value.limit_bytes == BATCH_MAX


def test_a_record_batch_with_one_message_too_large_is_refused(messages: Topic) -> None:
    payload = pa.array([b"fine", b"x" * (MESSAGE_MAX + 1)], pa.binary())
    with pytest.raises(MessageTooLarge):
        messages.publish_many(pa.record_batch({"_payload": payload}))
    keys = pa.array([b"fine", b"x" * (MESSAGE_MAX + 1)], pa.binary())
    with pytest.raises(MessageTooLarge):
        messages.publish_many(pa.record_batch({"_payload": pa.array([b"", b""], pa.binary()), "_key": keys}))


WRONG_MESSAGES: dict[str, dict[str, Any]] = {
    "no payload": {"payload": None},
    "a number": {"payload": 1},
    "a list": {"payload": [b"x"]},
    "a mapping": {"payload": {"a": 1}},
    "a lone surrogate": {"payload": "a\ud800b"},
    "a key that is a number": {"payload": b"", "key": 1},
    "a key with a lone surrogate": {"payload": b"", "key": "\udfff"},
    "attributes that are a list": {"payload": b"", "attributes": [("a", "b")]},
    "attributes that are text": {"payload": b"", "attributes": "a=b"},
    "an attribute that is a number": {"payload": b"", "attributes": {"a": 1}},
    "an attribute that is nothing": {"payload": b"", "attributes": {"a": None}},
    "an attribute named by a number": {"payload": b"", "attributes": {1: "a"}},
    "an attribute with a lone surrogate": {"payload": b"", "attributes": {"a": "\ud800"}},
    "an attribute named by a lone surrogate": {"payload": b"", "attributes": {"\ud800": "a"}},
}


@pytest.mark.parametrize("what", WRONG_MESSAGES)
def test_a_message_of_the_wrong_kind_is_refused(messages: Topic, what: str) -> None:
    with pytest.raises(InvalidInput):
        messages.publish(**WRONG_MESSAGES[what])
    with pytest.raises(InvalidInput):
        messages.publish_many([b"fine", Outgoing(**WRONG_MESSAGES[what])])


@pytest.mark.parametrize("many", [[], iter(()), None, 7, "text", b"bytes", {"a": 1}, [None], [[b"x"]], [("a", "b")]])
def test_many_messages_that_are_none_are_refused(messages: Topic, many: Any) -> None:
    with pytest.raises(InvalidInput):
        messages.publish_many(many)


def test_messages_whose_iterator_fails_are_not_published_in_part(messages: Topic) -> None:
    def failing() -> Iterator[bytes]:
        yield b"one"
        raise RuntimeError("the caller's own error")

    with pytest.raises(RuntimeError, match="own error"):
        messages.publish_many(failing())


# --- Arrow


LYING = {
    "offsets beyond the data": ([0, 5_000], b"short"),
    "an offset in the middle beyond the data": ([0, 5_000, 4], b"abcd"),
    "offsets that go back": ([0, 4, 2], b"abcd"),
    "negative offsets": ([-4, 4], b"abcd"),
    "a first offset beyond the data": ([5_000, 5_004], b"abcd"),
}


@pytest.mark.parametrize("what", LYING)
def test_a_batch_whose_offsets_lie_is_refused(messages: Topic, what: str) -> None:
    """Arrow looks at the ends of the offsets when a batch is made, so they are set to lie afterwards."""
    offsets, data = LYING[what]
    values = np.zeros(len(offsets), dtype=np.int32)
    array = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(values), pa.py_buffer(data)])
    batch = pa.record_batch({"_payload": array})
    values[:] = offsets
    with pytest.raises(InvalidInput):
        messages.publish_many(batch)


def test_a_typed_batch_whose_offsets_lie_is_refused(typed: Topic) -> None:
    values = np.zeros(3, dtype=np.int32)
    texts = pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(values), pa.py_buffer(b"ab")])
    values[:] = [0, 1_000_000, 2]
    with pytest.raises(InvalidInput):
        typed.publish_many(pa.RecordBatch.from_arrays([pa.array([1, 2], pa.int64()), texts], schema=SCHEMA))


def test_text_that_is_not_utf8_is_refused(typed: Topic, messages: Topic) -> None:
    offsets = pa.py_buffer(np.array([0, 2], dtype=np.int32))
    texts = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff\xfe")])
    with pytest.raises(SchemaMismatch):
        typed.publish_many(pa.RecordBatch.from_arrays([pa.array([1], pa.int64()), texts], schema=SCHEMA))
    with pytest.raises(SchemaMismatch):
        messages.publish_many(pa.record_batch({"_payload": pa.array([b"x"]), "_producer": texts}))


WRONG_BATCHES: dict[str, Callable[[], Any]] = {
    "no rows": lambda: rows([], []),
    "a missing column": lambda: pa.record_batch({"number": pa.array([1], pa.int64())}),
    "a column too many": lambda: rows([1], ["a"]).append_column("more", pa.array([1])),
    "another type": lambda: pa.record_batch({"number": pa.array([1], pa.int32()), "text": pa.array(["a"])}),
    "a null where none may be": lambda: pa.record_batch(
        {"number": pa.array([None], pa.int64()), "text": pa.array(["a"])}
    ),
    "a column twice": lambda: pa.RecordBatch.from_arrays(
        [pa.array([1], pa.int64()), pa.array([2], pa.int64()), pa.array(["a"])], names=["number", "number", "text"]
    ),
    "a dictionary": lambda: pa.record_batch(
        {"number": pa.array([1], pa.int64()), "text": pa.array(["a"]).dictionary_encode()}
    ),
    "a table": lambda: pa.table({"number": [1], "text": ["a"]}),
    "messages": lambda: [b"x"],
    "nothing": lambda: None,
}


@pytest.mark.parametrize("what", WRONG_BATCHES)
def test_a_batch_that_does_not_fit_the_topic_is_refused(typed: Topic, what: str) -> None:
    with pytest.raises(InvalidInput):
        typed.publish_many(WRONG_BATCHES[what]())


WRONG_ENVELOPES: dict[str, Callable[[], pa.RecordBatch]] = {
    "no payload": lambda: pa.record_batch({"_key": pa.array([b"k"])}),
    "a null payload": lambda: pa.record_batch({"_payload": pa.array([None], pa.binary())}),
    "an unknown column": lambda: pa.record_batch({"_payload": pa.array([b"x"]), "other": pa.array([1])}),
    "its own append time": lambda: pa.record_batch(
        {"_payload": pa.array([b"x"]), "_append_time": pa.array([0], pa.timestamp("us", tz="UTC"))}
    ),
    "its own offset": lambda: pa.record_batch({"_payload": pa.array([b"x"]), "_offset": pa.array([0])}),
    "a payload of numbers": lambda: pa.record_batch({"_payload": pa.array([1.5])}),
    "a null publish time": lambda: pa.record_batch(
        {"_payload": pa.array([b"x"]), "_publish_time": pa.array([None], pa.timestamp("us", tz="UTC"))}
    ),
    "a payload twice": lambda: pa.RecordBatch.from_arrays([pa.array([b"x"])] * 2, names=["_payload", "_payload"]),
    "a publish time no calendar has": lambda: pa.record_batch(
        {"_payload": pa.array([b"x"]), "_publish_time": pa.array([2**62], pa.timestamp("us", tz="UTC"))}
    ),
    "no rows": lambda: pa.record_batch({"_payload": pa.array([], pa.binary())}),
}


@pytest.mark.parametrize("what", WRONG_ENVELOPES)
def test_a_batch_that_is_no_envelope_is_refused(messages: Topic, what: str) -> None:
    with pytest.raises(InvalidInput):
        messages.publish_many(WRONG_ENVELOPES[what]())


SCHEMAS: dict[str, Any] = {
    "no columns": pa.schema([]),
    "a name of ours": pa.schema([("_x", pa.int64())]),
    "no name": pa.schema([("", pa.int64())]),
    "a name twice": pa.schema([("a", pa.int64()), ("a", pa.int64())]),
    "a dictionary": pa.schema([("a", pa.dictionary(pa.int8(), pa.string()))]),
    "a hidden dictionary": pa.schema([("a", pa.list_(pa.struct([("b", pa.dictionary(pa.int8(), pa.string()))])))]),
    "a union": pa.schema([("a", pa.dense_union([pa.field("b", pa.int8())]))]),
    "an extension": pa.schema([("a", pa.uuid())]),
    "text": "a: int64",
    "a list": [("a", pa.int64())],
}


@pytest.mark.parametrize("what", SCHEMAS)
def test_a_schema_that_cannot_be_stored_makes_no_topic(storage: Storage, what: str) -> None:
    with pytest.raises(InvalidInput):
        storage.create_topic("/default/new", schema=SCHEMAS[what])
    with pytest.raises(InvalidInput):
        storage.topic("/default/new", schema=SCHEMAS[what])
    with pytest.raises(InvalidInput):
        storage.change_schema("/default/typed", SCHEMAS[what])
    assert "/default/new" not in storage.topics()


# --- positions


@pytest.mark.parametrize("start", [-1, 2, 10**6, 2**63, 2**64, -(2**63)])
def test_an_offset_that_is_not_there_is_refused_with_what_is(messages: Topic, start: int) -> None:
    with pytest.raises(OffsetOutOfRange) as refused:
        messages.read(start)
    assert (refused.value.first, refused.value.end) == (0, 1)


@pytest.mark.parametrize(
    "start",
    [None, 1.0, True, "", "first", b"earliest", NAIVE, [0], "0"],
    ids=repr,
)
def test_a_start_of_the_wrong_kind_is_refused(messages: Topic, start: Any) -> None:
    with pytest.raises(InvalidPosition):
        messages.read(start)


@pytest.mark.parametrize("end", ["latest", 1.5, True, datetime(2026, 1, 1, tzinfo=timezone.utc), -1])
def test_an_end_of_the_wrong_kind_is_refused(messages: Topic, end: Any) -> None:
    with pytest.raises(InvalidPosition):
        list(messages.read(0, end=end))
