"""Malformed and hostile Flight streams against a real server: each gets a clean error, and the process stays up,
bounded, and of use to others."""

from __future__ import annotations

import json
import random
import struct
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pyarrow as pa
import pytest

import frazil
from frazil.core.put_notes import FewRow, few_note, piece_notes
from frazil.core.settings import MIB
from frazil.doors.flight import wire as flight_wire
from frazil.doors.flight.flight_pb2 import FlightData, FlightDescriptor, PutResult, Ticket
from frazil.log.write.publishing import GIVEN, message_rows
from parts.danube import Server

TOPIC = "/default/orders"
PATH = "/arrow.flight.protocol.FlightService/"
GROWTH_BYTES_MAX = 200 * MIB
ONLY_PAYLOADS = pa.schema([GIVEN.field("_payload")])
CLEAN = {
    grpc.StatusCode.UNKNOWN,  # Flight's own code for an error that was told
    grpc.StatusCode.INVALID_ARGUMENT,  # the same to a stock client
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNIMPLEMENTED,
}


class Hostile:
    """Speaks gRPC by hand, so that it can say whatever it likes."""

    def __init__(self, server: Server) -> None:
        assert server.process is not None
        self.process = psutil.Process(server.process.pid)
        self.channel = grpc.insecure_channel(
            server.flight.removeprefix("grpc://"), options=[("grpc.max_send_message_length", -1)]
        )
        self.server = server

    def put(self, *stream: bytes) -> tuple[list[dict[str, Any]], grpc.StatusCode | None, str]:
        """What the server answered, and how the call ended."""
        call = self.channel.stream_stream(PATH + "DoPut")(iter(stream), timeout=60)
        answers: list[dict[str, Any]] = []
        try:
            answers.extend(json.loads(PutResult.FromString(raw).app_metadata) for raw in call)
        except grpc.RpcError as error:
            return answers, error.code(), error.details() or ""
        return answers, None, ""

    def refused(self, *stream: bytes) -> str:
        """The message of the error with which it was refused."""
        answers, code, details = self.put(*stream)
        told = [answer["error"]["message"] for answer in answers if "error" in answer]
        assert code in CLEAN or (code is None and told), (answers, code, details)
        assert "Traceback" not in details
        return told[0] if told else details


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("hostile"))
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture
def hostile(server: Server) -> Iterator[Hostile]:
    """Checked afterwards: it lives, has not grown, and serves."""
    with frazil.connect(server.flight) as remote:
        remote.topic(TOPIC).publish("before")
        found = Hostile(server)
        before = found.process.memory_info().rss
        yield found
        assert server.process is not None
        assert server.process.poll() is None, server.log()[-2_000:]
        assert found.process.memory_info().rss - before < GROWTH_BYTES_MAX
        topic = remote.topic(TOPIC)
        offset = topic.publish("after")
        assert [message.payload for message in topic.read(offset)] == [b"after"]
        found.channel.close()
    assert "Traceback" not in server.log()


def opening(schema: pa.Schema = GIVEN, **changed: Any) -> bytes:
    asked = {"topic": TOPIC, "producer": "hostile", **changed}
    descriptor = FlightDescriptor(type=2, cmd=json.dumps(asked).encode())
    data = FlightData(flight_descriptor=descriptor)
    return data.SerializeToString() + flight_wire.schema_data(schema)


def plain_opening(schema: pa.Schema = GIVEN, *path: str) -> bytes:
    """As a stock client begins."""
    data = FlightData(flight_descriptor=FlightDescriptor(type=1, path=path or (TOPIC,)))
    return data.SerializeToString() + flight_wire.schema_data(schema)


def rows(count: int = 10, size: int = 100) -> pa.RecordBatch:
    return message_rows(frazil.WalSettings(), [bytes(size)] * count, 1_000_000)[0]


def numbered(data: bytes, sequence: int = 0) -> bytes:
    return data + FlightData(app_metadata=b'{"sequence": %d}' % sequence).SerializeToString()


def batch(sequence: int = 0, made: pa.RecordBatch | None = None) -> bytes:
    return numbered(flight_wire.batch_data(rows() if made is None else made), sequence)


def as_note(note: bytes) -> bytes:
    return bytes(FlightData(app_metadata=note).SerializeToString())


def few(sequence: int, *given: FewRow) -> bytes:
    return as_note(few_note(sequence, 1_000_000, given or [FewRow(b"tea", b"k", {"a": "b"}), FewRow(b"", None, None)]))


def pieces(made: pa.RecordBatch, sequence: int = 0) -> Iterator[bytes]:
    return map(as_note, piece_notes(sequence, memoryview(made.serialize())))


def end_of(hostile: Hostile) -> int:
    with frazil.connect(hostile.server.flight) as remote:
        return remote.topic(TOPIC).stats().end


def as_data(message: pa.Buffer, sequence: int = 0) -> bytes:
    return numbered(flight_wire._data(message, b""), sequence)


def changed_header(data: bytes, table_field: int, form: str, value: int) -> bytes:
    """The batch with one field of its flatbuffer changed."""
    received = flight_wire.received(data)
    assert isinstance(received, flight_wire.Received)
    view = memoryview(received.header)
    at = flight_wire._field(view, struct.unpack_from("<I", view)[0], 2)
    table = at + struct.unpack_from("<I", view, at)[0]
    header = bytearray(received.header)
    struct.pack_into(form, header, flight_wire._field(view, table, table_field), value)
    return FlightData(
        data_header=bytes(header), data_body=bytes(received.body), app_metadata=received.note
    ).SerializeToString()


@pytest.mark.parametrize("count", [-1, -(2**63), 11, 2**31, 2**31 - 1, 2**40, 2**63 - 1, 1_000_001])
def test_a_batch_that_lies_about_its_rows_is_refused(hostile: Hostile, count: int) -> None:
    for begin in (opening(), plain_opening()):
        message = hostile.refused(begin, changed_header(batch(), 0, "<q", count))
        assert "rows" in message or "not valid Arrow" in message


@pytest.mark.parametrize("begin", [opening, plain_opening])
def test_a_compressed_bomb_is_refused_before_it_is_opened(hostile: Hostile, begin: Callable[..., bytes]) -> None:
    bomb = pa.RecordBatch.from_arrays([pa.array([bytes(64 * MIB)] * 4, pa.binary())], schema=ONLY_PAYLOADS)
    for codec in ("zstd", "lz4"):
        options = pa.ipc.IpcWriteOptions(compression=codec)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, bomb.schema, options=options) as writer:
            writer.write_batch(bomb)
        reader = pa.BufferReader(sink.getvalue())
        pa.ipc.read_message(reader)
        start = reader.tell()
        message = sink.getvalue().slice(start)
        assert message.size < 4 * MIB
        before = hostile.process.memory_info().rss
        for _ in range(5):
            assert "compressed" in hostile.refused(begin(ONLY_PAYLOADS), as_data(message))
        assert hostile.process.memory_info().rss - before < 64 * MIB


def test_a_batch_beyond_the_limit_is_refused(hostile: Hostile) -> None:
    assert "batch_bytes_max" in hostile.refused(opening(), *pieces(rows(17, MIB - 100)))
    assert "larger than max" in hostile.refused(opening(), batch(0, rows(3, MIB)))
    many = pa.RecordBatch.from_arrays([pa.array([b""] * 1_000_001, pa.binary())], schema=ONLY_PAYLOADS)
    assert "batch_rows_max" in hostile.refused(opening(ONLY_PAYLOADS), *pieces(many))


def test_a_batch_in_pieces_is_taken_once_and_whole(hostile: Hostile) -> None:
    with frazil.connect(hostile.server.flight) as remote:
        topic = remote.topic("/default/pieces")
        made = rows(5, MIB)
        name = {"topic": "/default/pieces", "producer": "whole", "client": "one of a kind"}
        answers, code, _ = hostile.put(opening(**name), *pieces(made), *pieces(made, 5))
        assert code is None
        assert [acked for answer in answers for acked in answer.get("acked", [])] == [[0, 0], [5, 5]]
        answers, code, _ = hostile.put(opening(**name), *pieces(made, 5))
        assert [acked for answer in answers for acked in answer.get("acked", [])] == [[5, 5]]  # as the first time
        assert topic.stats().end == 10
        read = pa.Table.from_batches(list(topic.read_batches()))
        assert read["_payload"].combine_chunks().equals(pa.concat_arrays([made["_payload"]] * 2))


def test_pieces_that_lie_are_refused(hostile: Hostile) -> None:
    good = list(pieces(rows(5, MIB)))
    before = end_of(hostile)
    for case, message in [
        ([good[0]], "the stream ended"),
        ([good[0], *pieces(rows(5, MIB), 7)], "the next piece of the same batch was due"),
        ([good[0], few(0)], "the next piece of the same batch was due"),
        ([good[0], batch()], "the next piece of the same batch was due"),
        ([as_note(b'{"sequence":0,"bytes":10}\n' + bytes(100))], "more than they say"),
        ([as_note(b'{"sequence":0,"bytes":10}\n' + bytes(10))], "not valid Arrow"),
        ([as_note(b'{"sequence":0,"bytes":0}\n')], "bytes"),
        ([as_note(b'{"sequence":0,"bytes":-1}\nx')], "bytes"),
        ([as_note(b'{"sequence":0,"bytes":99999999999}\nx')], "bytes"),
        ([as_note(b'{"sequence":0,"bytes":100}')], "the stream ended"),
        ([good[0], as_note(b'{"sequence":0,"bytes":100}')], "the next piece of the same batch was due"),
    ]:
        assert message in hostile.refused(opening(), *case), message
    assert end_of(hostile) == before


def test_a_few_messages_that_lie_are_refused(hostile: Hostile) -> None:
    before = end_of(hostile)
    for case, message in [
        (b'"rows":[[5,null,null]]}\n1234', "rows: they say that 5 bytes follow, and 4 do"),
        (b'"rows":[[3,null,null]]}\n1234', "rows: they say that 3 bytes follow, and 4 do"),
        (b'"rows":[[3,2,null]]}\n1234', "rows: they say that 5 bytes follow"),
        (b'"rows":[[9223372036854775807,null,null]]}\n1234', "rows"),
        (b'"rows":[[-4,8,null]]}\n1234', "rows"),
        (b'"rows":[[4,null]]}\n1234', "rows"),
        (b'"rows":[]}\n', "no messages"),
        (b'"rows":[%s[0,0,null]]}\n' % (b"[0,0,null]," * 32), "rows"),
        (b'"rows":[[4,null,{"a":1}]]}\n1234', "rows"),
        (b'"rows":[[4,null,{"a":"\\ud800"}]]}\n1234', ""),
        (b'"time_us":9223372036854775807,"rows":[[4,null,null]]}\n1234', "_publish_time"),
        (b'"time_us":1e3,"rows":[[4,null,null]]}\n1234', "time_us"),
        (b'"rows":[[4,null,null]],"more":1}\n1234', "more"),
        (b'"rows":[[4,null,null]]', "batch"),
    ]:
        assert message in hostile.refused(opening(), as_note(b'{"sequence":0,' + case)), case
    assert end_of(hostile) == before


def test_a_typed_topic_takes_no_messages(hostile: Hostile) -> None:
    with frazil.connect(hostile.server.flight) as remote:
        remote.topic("/default/typed", schema=pa.schema([("a", pa.int64())]))
    stream = opening(pa.schema([("a", pa.int64())]), topic="/default/typed")
    assert "is a typed topic" in hostile.refused(stream, few(0))


def test_streams_that_stop_within_a_message_hold_little_and_stall_nobody(hostile: Hostile) -> None:
    """Forty that begin a batch of almost 16 MiB in pieces, and say no more."""
    before = hostile.process.memory_info().rss
    ending = threading.Event()

    def stalled(*stream: bytes) -> Iterator[bytes]:
        yield from stream
        ending.wait(60)

    begun = [next(iter(pieces(rows(15, MIB))))]
    calls = [
        hostile.channel.stream_stream(PATH + "DoPut")(stalled(opening(producer=f"stalled {at}"), *begun), timeout=60)
        for at in range(40)
    ]
    try:
        for call in calls:
            assert b"epoch" in next(call)
        with frazil.connect(hostile.server.flight) as remote:
            topic = remote.topic(TOPIC)
            for _ in range(20):
                topic.publish("beside")
            assert hostile.process.memory_info().rss - before < 160 * MIB  # a piece of each of them, and some room
    finally:
        ending.set()
        for call in calls:
            call.cancel()
    with frazil.connect(hostile.server.flight) as remote:  # and those who left have left the room too
        remote.topic(TOPIC).publish_many(rows(15, MIB))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (pa.schema([pa.field("x", pa.int64())]), "'x' of type int64"),
        (pa.schema([pa.field("_payload", pa.string())]), "'_payload' of type string"),
        (pa.schema([pa.field("_payload", pa.dictionary(pa.int8(), pa.binary()))]), "'_payload' of type dictionary"),
        (pa.schema([pa.field("_payload", pa.null())]), "'_payload' of type null"),
        (pa.schema([]), ""),
    ],
)
def test_a_wrong_schema_is_refused(hostile: Hostile, schema: pa.Schema, message: str) -> None:
    one = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
    assert message in hostile.refused(opening(schema), batch(0, one))


def test_streams_that_are_none_are_refused(hostile: Hostile) -> None:
    cases = [
        [b""],
        [b"\xff" * 100],
        [opening(topic="/default/absent")],
        [opening(topic="nonsense")],
        [opening(producer="")],
        [opening(producer="x" * 256)],
        [opening(epochs=[-1, 2])],
        [opening(more=1)],
        [FlightData(flight_descriptor=FlightDescriptor(cmd=b"{" * 4_000)).SerializeToString()],
        [FlightData(flight_descriptor=FlightDescriptor(cmd=b"[" * 100_000)).SerializeToString()],
        [batch()],
        [opening(), b"\xff" * 1_000],
        [opening(), FlightData(app_metadata=b'{"sequence": 0}').SerializeToString()],
        [opening(), flight_wire.batch_data(rows())],
        [opening(), batch(-1)],
        [opening(), batch(2**63)],
        [opening(), batch(7)],
        [opening(), opening()],
        [opening(), as_data(GIVEN.serialize())],
    ]
    for case in cases:
        assert hostile.refused(*case) is not None, case[-1][:100]


def test_plain_streams_that_are_none_are_refused(hostile: Hostile) -> None:
    before = end_of(hostile)
    texts = pa.schema([("payload", pa.string())])
    liar = pa.RecordBatch.from_arrays([pa.array([b"\xff\xfe"])], names=["payload"])
    for case, message in [
        ([plain_opening(GIVEN, "/default/absent")], "no topic"),
        ([plain_opening(GIVEN, "..", "..")], "neither"),
        ([plain_opening(GIVEN, *["x"] * 10_000)], "not 10000 parts"),
        ([plain_opening(GIVEN, "x" * 100_000)], "must have the form"),
        ([FlightData(flight_descriptor=FlightDescriptor(path=[TOPIC], cmd=b"{}")).SerializeToString()], "one of them"),
        ([FlightData(flight_descriptor=FlightDescriptor(path=[TOPIC])).SerializeToString()], "header"),
        ([plain_opening(pa.schema([]))], "'payload' is missing"),
        ([plain_opening(), b"\xff" * 1_000], "not a valid FlightData"),
        ([plain_opening(), FlightData(app_metadata=b"note").SerializeToString()], "header"),
        ([plain_opening(), plain_opening()], "a record batch was due"),
        ([plain_opening(), as_data(GIVEN.serialize())], "a record batch was due"),
        ([plain_opening(texts), flight_wire.batch_data(liar)], "not valid Arrow"),
        ([plain_opening(), flight_wire.batch_data(rows(3, MIB))], "larger than max"),
    ]:
        assert message in hostile.refused(*case), message
    assert end_of(hostile) == before


@pytest.mark.parametrize("method", ["DoPut", "DoExchange"])
def test_a_stream_that_says_nothing_is_ended(hostile: Hostile, method: str) -> None:
    silent = threading.Event()

    def never() -> Iterator[bytes]:
        silent.wait(60)
        yield from ()

    call = hostile.channel.stream_stream(PATH + method)(never(), timeout=60)
    try:
        with pytest.raises(grpc.RpcError) as refused:
            next(call)
        assert "did not say within 5 s what it is for" in (refused.value.details() or "")  # type: ignore[attr-defined]
    finally:
        silent.set()


def test_other_calls_with_nonsense_are_refused(hostile: Hostile) -> None:
    for method in ("DoGet", "DoAction", "GetFlightInfo", "GetSchema", "ListFlights", "Handshake"):
        nonsense = (b"", b"\xff" * 100, b"\x0a\x05hello", bytes(1_000))
        for raw in nonsense[1::2] if method == "ListFlights" else nonsense:  # the others are prefixes of names
            with pytest.raises(grpc.RpcError) as raised:
                list(hostile.channel.unary_stream(PATH + method)(raw, timeout=60))
            assert raised.value.code() in CLEAN, (method, raw)
    for raw in (b"", b"\xff" * 100):
        with pytest.raises(grpc.RpcError) as raised:
            list(hostile.channel.stream_stream(PATH + "DoExchange")(iter([raw]), timeout=60))
        assert raised.value.code() in CLEAN


@pytest.mark.parametrize("asked", [{"query": "select 1\0"}, {"query": "select 1", "at": "\0"}, {"query": "\ud800"}])
def test_a_question_that_no_process_can_be_asked_is_refused(hostile: Hostile, asked: dict[str, str]) -> None:
    ticket = Ticket(ticket=json.dumps({"sql": asked}).encode()).SerializeToString()
    with pytest.raises(grpc.RpcError) as raised:
        list(hostile.channel.unary_stream(PATH + "DoGet")(ticket, timeout=60))
    assert raised.value.code() in CLEAN
    assert "malformed" in (raised.value.details() or "")


def flip(rng: random.Random, data: bytes) -> bytes:
    flipped = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
    if rng.random() < 0.1:
        del flipped[rng.randrange(len(flipped)) :]
    return bytes(flipped)


def flip_bits(hostile: Hostile, streams: int) -> None:
    """Of headers more than of bodies, where a flipped bit of a payload is as good as any."""
    made = [rows(3, 40), rows(100, 8), pa.RecordBatch.from_pylist(
        [{"_publish_time": 5, "_payload": b"x", "_key": b"k", "_attributes": [("a", "b")] * 3}] * 4, schema=GIVEN
    )]  # fmt: skip
    outcomes = {"taken": 0, "refused": 0}
    for seed in range(streams):
        rng = random.Random(seed)
        received = flight_wire.received(batch(0, rng.choice(made)))
        assert isinstance(received, flight_wire.Received)
        header, body, note = received.header, bytes(received.body), received.note
        if rng.random() < 0.3:
            header, body, note = b"", b"", few_note(0, 1_000_000, [FewRow(b"tea", b"k", {"a": "b"})] * 3)
        elif rng.random() < 0.2:
            header, body, note = b"", b"", next(piece_notes(0, memoryview(made[0].serialize())))
        where = rng.random() if header else 1
        if where < 0.6:
            header = flip(rng, header)
        elif where < 0.9:
            body = flip(rng, body)
        else:
            note = flip(rng, note)
        raw = FlightData(data_header=header, data_body=body, app_metadata=note).SerializeToString()
        if rng.random() < 0.1:
            raw = flip(rng, raw)
        producer = f"seed {seed} {uuid.uuid4()}"  # a name that another test has used would be refused for its number
        answers, code, details = hostile.put(opening(producer=producer), raw)
        assert code in CLEAN or code is None, (seed, code, details)
        outcomes["taken" if any("acked" in answer for answer in answers) else "refused"] += 1
    assert min(outcomes.values()) > streams / 10, outcomes


def test_flipped_bits_are_refused_or_harmless(hostile: Hostile) -> None:
    flip_bits(hostile, 400)


def test_flipped_bits_of_plain_batches_are_refused_or_harmless(hostile: Hostile) -> None:
    """Also where texts are cast to bytes, which reads the buffers before the topic checks them."""
    texts = pa.RecordBatch.from_pydict({"payload": ["tea", "rye bread"] * 20, "key": ["anna", None] * 20})
    large = pa.RecordBatch.from_arrays([texts[0].cast(pa.large_string()), texts[1]], names=["payload", "key"])
    taken = 0
    for seed in range(300):
        rng = random.Random(seed)
        made = rng.choice([rows(3, 40), texts, large])
        received = flight_wire.received(flight_wire.batch_data(made))
        assert isinstance(received, flight_wire.Received)
        header, body = received.header, bytes(received.body)
        header, body = (flip(rng, header), body) if rng.random() < 0.6 else (header, flip(rng, body))
        raw = FlightData(data_header=header, data_body=body).SerializeToString()
        answers, code, details = hostile.put(plain_opening(made.schema), raw)
        assert code in CLEAN or code is None, (seed, code, details)
        taken += any(answer["rows"] for answer in answers)
    assert 30 < taken < 270


@pytest.mark.long
@pytest.mark.timeout(3_000)
def test_many_flipped_bits_are_refused_or_harmless(hostile: Hostile) -> None:
    flip_bits(hostile, 20_000)


def test_what_was_taken_can_all_be_read_and_checked(server: Server, hostile: Hostile, tmp_path: Path) -> None:
    """Nothing that a flipped bit has brought into the log breaks who reads it."""
    flip_bits(hostile, 50)
    with frazil.connect(server.flight) as remote:
        topic = remote.topic(TOPIC)
        messages = list(topic.read())
        assert [message.offset for message in messages] == list(range(topic.stats().end))


def test_times_in_a_buffer_of_an_odd_size_are_read_as_far_as_they_go(hostile: Hostile) -> None:
    schema = pa.schema([GIVEN.field("_publish_time"), GIVEN.field("_payload")])
    times = pa.Array.from_buffers(schema.field(0).type, 1, [None, pa.py_buffer(bytes(13))])
    one = pa.RecordBatch.from_arrays([times, pa.array([b"x"], pa.binary())], schema=schema)
    received = flight_wire.received(batch(0, one))
    assert isinstance(received, flight_wire.Received)
    header = received.header.replace(struct.pack("<q", 8), struct.pack("<q", 13), 1)
    assert header != received.header
    raw = FlightData(data_header=header, data_body=bytes(received.body), app_metadata=received.note).SerializeToString()
    answers, code, _ = hostile.put(opening(schema, producer="odd"), raw)
    assert code in CLEAN or code is None
    assert answers
