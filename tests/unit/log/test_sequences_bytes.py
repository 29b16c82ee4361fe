"""What segments and records say of producers: the bytes, what is refused of them, and any that are hostile."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from numbered_logs import AN_HOUR_US, FIRST, Logs, log_schema
from segment_files import FOLDER, LOG, SCHEMA, SETTINGS, TOPIC, check_refusal, frames_of, get, numbers, put

from frazil import (
    CorruptLog,
    ProducerState,
    Sent,
)
from frazil.core.disk.memory import MemoryDisk
from frazil.core.names import TopicName
from frazil.log.format.frames import pack_head, pack_header, pack_rows, sent_text, unpack_head
from frazil.log.format.records import read_record, write_record
from frazil.log.repair.check import State, check
from frazil.log.repair.repair import repair
from frazil.log.storage import open_storage
from frazil.log.write.producers import BadProducers, Producers, SentRows, sent_as_text, sent_from_text
from frazil.testing import FakeClock

# --- the bytes


def test_a_log_without_numbered_batches_says_nothing_of_producers() -> None:
    log = Logs(max_file_age_ms=1_000)
    for _ in range(2):
        log.topic.publish_many(numbers(0, 2))
        log.clock.step_wall(AN_HOUR_US)
    log.storage.close()
    assert not [path for path in log.segments() if b"frazil.sent" in get(log.disk, path)]
    assert not [path for path in log.segments() if b"frazil.producers" in get(log.disk, path)]
    assert b"epochs" not in get(log.disk, FOLDER / "topic.json")


def test_the_payloads_of_a_segment_are_still_a_plain_arrow_stream() -> None:
    log = Logs(max_file_age_ms=1_000)
    log.send(0)
    log.clock.step_wall(AN_HOUR_US)
    log.send(2, 3)
    log.topic.publish_many(numbers(5, 1))
    log.storage.close()
    for path, expected in zip(log.segments(), ([0, 1], [2, 3, 4, 5]), strict=True):
        payloads = [bytes(frame.payload) for frame in frames_of(log.disk, path) if not frame.is_mark]
        assert pa.ipc.open_stream(b"".join(payloads)).read_all()["value"].to_pylist() == expected


@pytest.mark.parametrize("length", [1, 7, 8, 100, 4_000, 1_000_000])
def test_what_is_said_of_producers_may_have_any_length(length: int) -> None:
    rows = numbers(0, 3)
    text = b"x" * length
    payload = pack_rows(rows, text)
    assert payload.size % 8 == 0
    frame = frames_in(pack_header(0, payload) + payload.to_pybytes())[0]
    assert pa.ipc.read_record_batch(pa.py_buffer(frame.payload), SCHEMA).equals(rows)
    assert sent_text("s", frame, SCHEMA) == text


def frames_in(data: bytes) -> list[Any]:
    disk = MemoryDisk()
    disk.make_folder(FOLDER)
    put(disk, FIRST, data)
    return frames_of(disk, FIRST)


def test_a_payload_that_speaks_of_producers_is_not_believed() -> None:
    disk = MemoryDisk()
    storage = open_storage(SETTINGS, disk=disk, clock=FakeClock())
    storage.topic("/default/messages").publish_many([b'frazil.sent[[0,1,"p",0,0]]', b"frazil.producers"])
    storage.close()
    topic = open_storage(SETTINGS, disk=disk, clock=FakeClock()).topic("/default/messages")
    assert topic.producer_state("p") is None


# --- hostile bytes


def with_sent(text: bytes) -> tuple[Logs, int]:
    """A log whose last frame says this of its producers, under a checksum that matches; and where that frame is."""
    log = Logs()
    log.send(0)
    log.storage.close()
    data = get(log.disk, FIRST).rstrip(b"\0")
    data += bytes(-len(data) % 8)
    rows = numbers(2, 2).add_column(0, log_schema().field(0), pa.array([2**52] * 2, log_schema().field(0).type))
    payload = pack_rows(rows.cast(log_schema()), text).to_pybytes()
    end = frames_of(log.disk, FIRST)[-1].end_position
    put(log.disk, FIRST, data[:end].ljust(end, b"\0") + pack_header(2, payload) + payload)
    return log, end


GOOD = b'[[0,2,"p",0,2]]'
BAD_SENT = {
    "no JSON": b"[[0,2,",
    "no text": b"\xff\xfe\xfd",
    "not a list": b"5",
    "an object": b'{"row":0}',
    "too few": b'[[0,2,"p",0]]',
    "too many": b'[[0,2,"p",0,2,1]]',
    "rows beyond the frame": b'[[0,3,"p",0,2]]',
    "rows behind the frame": b'[[2,1,"p",0,2]]',
    "no rows": b'[[0,0,"p",0,2]]',
    "rows before the frame": b'[[-1,2,"p",0,2]]',
    "rows twice": b'[[0,2,"p",0,2],[1,1,"q",0,0]]',
    "no name": b'[[0,2,"",0,2]]',
    "a name that is a number": b"[[0,2,7,0,2]]",
    "a long name": b'[[0,2,"%s",0,2]]' % (b"x" * 256),
    "half a character": b'[[0,2,"\\ud800",0,2]]',
    "a negative epoch": b'[[0,2,"p",-1,2]]',
    "an epoch that is true": b'[[0,2,"p",true,2]]',
    "a fraction": b'[[0,2,"p",0,2.0]]',
    "a number too large": b'[[0,2,"p",0,9223372036854775807]]',
    "a number of 5,000 digits": b'[[0,2,"p",0,%s]]' % (b"9" * 5_000),
    "infinity": b'[[0,Infinity,"p",0,2]]',
    "nested too deep": b"[" * 100_000,
    "a gap": b'[[0,2,"p",0,3]]',
    "the same again": b'[[0,2,"p",0,0]]',
}


def test_a_frame_with_good_metadata_is_believed() -> None:
    log, _ = with_sent(GOOD)
    log.restart()
    assert log.state() == ProducerState(0, 4, ((0, 0, 2), (2, 2, 2)))


@pytest.mark.parametrize("kind", BAD_SENT)
def test_bad_metadata_under_a_good_checksum_is_refused_with_its_place(kind: str) -> None:
    log, position = with_sent(BAD_SENT[kind])
    log.storage = open_storage(log.settings, disk=log.disk, clock=log.clock)
    with pytest.raises(CorruptLog) as refused:
        log.storage.topic(TOPIC)
    check_refusal(refused.value, FIRST)
    assert refused.value.position == position
    log.storage.close()
    (report,) = check(log.disk, LOG, [TopicName.parse(TOPIC)])
    assert (report.state, report.end) == (State.CORRUPT, 2)
    assert repair(log.settings, TOPIC, disk=log.disk).plan.end == 2
    log.restart()
    assert log.send(2) == 2


BAD_TABLES = {
    "no JSON": b"{",
    "a list": b"[]",
    "no floor": b'{"producers":[]}',
    "a bad floor": b'{"floor":-1,"producers":[]}',
    "no producers": b'{"floor":0}',
    "producers that are no list": b'{"floor":0,"producers":{"abcd":1}}',
    "a producer twice": b'{"floor":0,"producers":[["p",0,0,[]],["p",0,0,[]]]}',
    "too few": b'{"floor":0,"producers":[["p",0,0]]}',
    "half a place": b'{"floor":0,"producers":[["p",0,2,[0]]]}',
    "places that are no list": b'{"floor":0,"producers":[["p",0,2,"ab"]]}',
    "rows that are not there yet": b'{"floor":0,"producers":[["p",0,2,[0,2]]]}',
    "more rows than numbers": b'{"floor":0,"producers":[["p",0,1,[0,2]]]}',
    "a huge number and a fraction": b'{"floor":0,"producers":[["p",0,1,[0,1%s,0,1.5]]]}' % (b"0" * 400),
    "too many producers": b'{"floor":0,"producers":[%s]}' % b",".join(b'["%d",0,0,[]]' % n for n in range(1_001)),
    "too many batches": b'{"floor":0,"producers":[["p",0,99,[%s]]]}' % b",".join(b"%d,1" % n for n in range(65)),
}


@pytest.mark.parametrize("kind", BAD_TABLES)
def test_a_bad_table_in_a_head_is_refused_with_its_place(kind: str) -> None:
    log = Logs()
    log.topic.publish_many(numbers(0, 1))
    log.storage.close()
    frames = frames_of(log.disk, FIRST)
    head = unpack_head("s", frames[0])
    rest = get(log.disk, FIRST)[frames[0].end_position :]
    put(log.disk, FIRST, pack_head(0, head, BAD_TABLES[kind]) + rest)
    storage = open_storage(log.settings, disk=log.disk, clock=log.clock)
    with pytest.raises(CorruptLog) as refused:
        storage.topic(TOPIC)
    check_refusal(refused.value, FIRST)
    assert refused.value.position == 0
    storage.close()


def test_a_bad_record_of_epochs_is_refused() -> None:
    for bad in (["p"], {"p": -1}, {"p": "1"}, {"": 1}, {"x" * 256: 1}):
        log = Logs()
        log.storage.close()
        _write_record(log.disk, epochs=bad)
        storage = open_storage(log.settings, disk=log.disk, clock=log.clock)
        with pytest.raises(CorruptLog, match="topic record"):
            storage.topic(TOPIC)
        storage.close()


def test_a_bad_record_of_clients_is_refused() -> None:
    for bad in (["p"], {"p": ""}, {"p": 5}, {"p": "x" * 65}, {"p": None}):
        log = Logs()
        log.storage.close()
        _write_record(log.disk, epochs={"p": 0}, clients=bad)
        storage = open_storage(log.settings, disk=log.disk, clock=log.clock)
        with pytest.raises(CorruptLog, match="topic record"):
            storage.topic(TOPIC)
        storage.close()


def _write_record(disk: MemoryDisk, **changed: Any) -> None:
    path = FOLDER / "topic.json"
    content = read_record(disk, path)
    assert content is not None
    write_record(disk, path, content | changed)


def mutated(text: bytes, rng: random.Random) -> bytes:
    data = bytearray(text)
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at : at + 1] = rng.choice(
                    [b"9" * rng.randrange(1, 30), b"-", b".5", b"null", b"[", b"]", b'"', b"e9"]
                )
            case 2:
                del data[at : at + rng.randrange(1, 9)]
            case _:
                data[at:at] = data[at : at + rng.randrange(1, 20)]
        if not data:
            break
    return bytes(data)


def parses(text: bytes) -> list[Callable[[], Any]]:
    return [lambda: sent_from_text(text, 9), lambda: Producers.from_text(text, 1_000)]


def test_whatever_is_said_of_producers_is_either_valid_or_refused() -> None:
    rng = random.Random(5)
    table = Producers(floor=3)
    for number in range(40):
        table.store(Sent("pqü"[number % 3], number, 2 * (number // 3)), 2, 20 * number)
    texts = [sent_as_text([SentRows(0, 2, Sent("p", 1, 5)), SentRows(4, 5, Sent('ü"', 0, 0))]), table.as_text()]
    outcomes = {"valid": 0, "refused": 0}
    for number in range(20_000):
        text = mutated(texts[number % 2], rng)
        try:
            found = parses(text)[number % 2]()
        except BadProducers:
            outcomes["refused"] += 1
            continue
        outcomes["valid"] += 1
        if isinstance(found, Producers):
            assert Producers.from_text(found.as_text() or table.as_text(), 1_000) is not None
        else:
            assert all(row >= 0 and rows > 0 and row + rows <= 9 for row, rows, _ in found)
    assert min(outcomes.values()) > 500, outcomes
