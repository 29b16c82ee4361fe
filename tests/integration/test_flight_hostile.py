"""Malformed and hostile Flight streams against a real server: each gets a clean error, and the process stays up,
bounded, and of use to others."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pyarrow as pa
import pytest

import frazil
from frazil.core.settings import MIB
from frazil.log.publishing import GIVEN, message_rows
from frazil.serve import flight_wire
from frazil.serve.flight_pb2 import FlightData, FlightDescriptor, PutResult
from parts.danube import Server

TOPIC = "/default/orders"
PATH = "/arrow.flight.protocol.FlightService/"
GROWTH_BYTES_MAX = 200 * MIB
ONLY_PAYLOADS = pa.schema([GIVEN.field("_payload")])
CLEAN = {
    grpc.StatusCode.UNKNOWN,  # Flight's own code for an error that was told
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


def rows(count: int = 10, size: int = 100) -> pa.RecordBatch:
    return message_rows(frazil.WalSettings(), [bytes(size)] * count, 1_000_000)[0]


def numbered(data: bytes, sequence: int = 0) -> bytes:
    return data + FlightData(app_metadata=b'{"sequence": %d}' % sequence).SerializeToString()


def batch(sequence: int = 0, made: pa.RecordBatch | None = None) -> bytes:
    return numbered(flight_wire.batch_data(rows() if made is None else made), sequence)


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
        data_header=bytes(header), data_body=received.body, app_metadata=received.note
    ).SerializeToString()


@pytest.mark.parametrize("count", [-1, -(2**63), 11, 2**31, 2**31 - 1, 2**40, 2**63 - 1, 1_000_001])
def test_a_batch_that_lies_about_its_rows_is_refused(hostile: Hostile, count: int) -> None:
    message = hostile.refused(opening(), changed_header(batch(), 0, "<q", count))
    assert "rows" in message or "not valid Arrow" in message


def test_a_compressed_bomb_is_refused_before_it_is_opened(hostile: Hostile) -> None:
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
            assert "compressed" in hostile.refused(opening(ONLY_PAYLOADS), as_data(message))
        assert hostile.process.memory_info().rss - before < 64 * MIB


def test_a_batch_beyond_the_limit_is_refused(hostile: Hostile) -> None:
    assert "batch_bytes_max" in hostile.refused(opening(), batch(0, rows(17, MIB - 100)))
    assert "larger than max" in hostile.refused(opening(), batch(0, rows(40, MIB)))
    many = pa.RecordBatch.from_arrays([pa.array([b""] * 1_000_001, pa.binary())], schema=ONLY_PAYLOADS)
    assert "batch_rows_max" in hostile.refused(opening(ONLY_PAYLOADS), batch(0, many))


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


def test_other_calls_with_nonsense_are_refused(hostile: Hostile) -> None:
    for method in ("DoGet", "DoAction", "GetFlightInfo", "GetSchema", "ListFlights", "Handshake"):
        for raw in (b"", b"\xff" * 100, b"\x0a\x05hello", bytes(1_000)):
            with pytest.raises(grpc.RpcError) as raised:
                list(hostile.channel.unary_stream(PATH + method)(raw, timeout=60))
            assert raised.value.code() in CLEAN, (method, raw)
    for raw in (b"", b"\xff" * 100):
        with pytest.raises(grpc.RpcError) as raised:
            list(hostile.channel.stream_stream(PATH + "DoExchange")(iter([raw]), timeout=60))
        assert raised.value.code() in CLEAN


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
        header, body, note = received.header, received.body, received.note
        where = rng.random()
        if where < 0.6:
            header = flip(rng, header)
        elif where < 0.9:
            body = flip(rng, body)
        else:
            note = flip(rng, note)
        raw = FlightData(data_header=header, data_body=body, app_metadata=note).SerializeToString()
        if rng.random() < 0.1:
            raw = flip(rng, raw)
        answers, code, details = hostile.put(opening(producer=f"seed {seed}"), raw)
        assert code in CLEAN or code is None, (seed, code, details)
        outcomes["taken" if any("acked" in answer for answer in answers) else "refused"] += 1
    assert min(outcomes.values()) > streams / 10, outcomes


def test_flipped_bits_are_refused_or_harmless(hostile: Hostile) -> None:
    flip_bits(hostile, 400)


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
