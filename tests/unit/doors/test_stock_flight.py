"""A stock Arrow Flight client, PyArrow's own, without anything of Frazil's."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight
import pytest

import frazil
from frazil.core.settings import FlightSettings
from frazil.doors.flight import wire
from frazil.doors.flight.actions import ABOUT
from frazil.doors.flight.door import FlightDoor, flight_door
from frazil.doors.flight.put import plain as plain_put
from frazil.log.storage import Storage

ORDERS, READINGS = "/default/orders", "/weather/readings"
TYPED = pa.schema([pa.field("sensor", pa.string(), nullable=False), pa.field("celsius", pa.float64())])
ROW = {"sensor": "a", "celsius": 1.5}
PATH = pa.flight.FlightDescriptor.for_path


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    with frazil.open(tmp_path) as storage:
        storage.topic(ORDERS).publish_many([f"message {number}" for number in range(100)])
        storage.topic(READINGS, schema=TYPED)
        yield storage


@pytest.fixture
def door(storage: Storage) -> Iterator[FlightDoor]:
    with flight_door(storage, FlightSettings(port=0, batch_rows_max=1_000)) as door:
        yield door


@pytest.fixture
def client(door: FlightDoor) -> Iterator[pa.flight.FlightClient]:
    with pa.flight.connect(door.address) as client:
        yield client


def rows_of(client: pa.flight.FlightClient, descriptor: pa.flight.FlightDescriptor) -> pa.Table:
    (endpoint,) = client.get_flight_info(descriptor).endpoints
    return client.do_get(endpoint.ticket).read_all()


def put(
    client: pa.flight.FlightClient,
    path: tuple[str, ...],
    batches: list[pa.RecordBatch],
    schema: pa.Schema | None = None,
) -> list[dict[str, Any]]:
    """Each batch, and then all the answers to them."""
    writer, answers = client.do_put(PATH(*path), schema or batches[0].schema)
    for batch in batches:
        writer.write_batch(batch)
    writer.done_writing()
    found = []
    while (told := answers.read()) is not None:
        found.append(json.loads(told.to_pybytes()))
    writer.close()
    return found


def messages(*payloads: Any, **columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"payload": list(payloads), **columns})


# --- look


def test_flights_are_the_topics_and_the_criteria_a_prefix(client: pa.flight.FlightClient) -> None:
    assert [info.descriptor.path for info in client.list_flights()] == [
        [b"default", b"orders"],
        [b"weather", b"readings"],
    ]
    (found,) = client.list_flights(b"/weather/")
    assert found.descriptor.path == [b"weather", b"readings"]
    assert list(client.list_flights(b"/nobody")) == []
    with pytest.raises(pa.ArrowInvalid, match="UTF-8"):
        list(client.list_flights(b"\xff"))


@pytest.mark.parametrize("path", [("default", "orders"), (ORDERS,)])
def test_a_flight_info_leads_to_all_rows(client: pa.flight.FlightClient, path: tuple[str, ...]) -> None:
    info = client.get_flight_info(PATH(*path))
    assert (info.total_records, info.ordered) == (100, True)
    told = json.loads(info.app_metadata)
    assert (told["end_offset"], told["batch_bytes_max"], told["batch_rows_max"]) == (100, 2 * 1024 * 1024, 1_000)
    table = client.do_get(info.endpoints[0].ticket).read_all()
    assert table.schema.equals(info.schema)
    assert client.get_schema(PATH(*path)).schema.equals(info.schema)
    assert table["_offset"].to_pylist() == list(range(100))
    assert table["_payload"][7].as_py() == b"message 7"


def test_a_ticket_reads_up_to_the_end_of_its_info(storage: Storage, client: pa.flight.FlightClient) -> None:
    info = client.get_flight_info(PATH(ORDERS))
    storage.topic(ORDERS).publish("later")
    assert client.do_get(info.endpoints[0].ticket).read_all().num_rows == 100
    assert rows_of(client, PATH(ORDERS)).num_rows == 101


def test_a_topic_without_rows_has_columns(client: pa.flight.FlightClient) -> None:
    table = rows_of(client, PATH(READINGS))
    assert (table.num_rows, table.column_names) == (0, ["_offset", "_append_time", "sensor", "celsius"])


def test_a_command_names_a_part_of_a_topic(client: pa.flight.FlightClient) -> None:
    def part(**wanted: Any) -> list[int]:
        command = json.dumps({"read": {"topic": ORDERS, **wanted}}).encode()
        table = rows_of(client, pa.flight.FlightDescriptor.for_command(command))
        return list(table["_offset"].to_pylist())

    assert part(start=7, end=10) == [7, 8, 9]
    assert part(start=98) == [98, 99]
    assert part(start="latest") == []
    assert part(start={"time_us": 0}, end=1_000) == list(range(100))


def test_a_stock_client_follows_a_topic(storage: Storage, client: pa.flight.FlightClient) -> None:
    command = json.dumps({"read": {"topic": ORDERS, "start": 99, "follow": True}}).encode()
    (endpoint,) = client.get_flight_info(pa.flight.FlightDescriptor.for_command(command)).endpoints
    stream = client.do_get(endpoint.ticket)
    assert stream.read_chunk().data["_offset"].to_pylist() == [99]
    later = threading.Timer(1.5, storage.topic(ORDERS).publish, ("later",))  # longer than a quiet stream is quiet
    later.start()
    assert stream.read_chunk().data["_payload"].to_pylist() == [b"later"]
    later.join()
    stream.cancel()


def test_rows_of_before_a_change_of_schema_have_the_present_columns(
    storage: Storage, client: pa.flight.FlightClient
) -> None:
    put(client, (READINGS,), [pa.RecordBatch.from_pylist([ROW], schema=TYPED)])
    storage.change_schema(READINGS, TYPED.append(pa.field("pascal", pa.int64())))
    assert rows_of(client, PATH(READINGS)).select(["sensor", "pascal"]).to_pylist() == [{"sensor": "a", "pascal": None}]


def test_a_topic_with_partitions_has_a_ticket_for_each(storage: Storage, client: pa.flight.FlightClient) -> None:
    for number, topic in enumerate(storage.create_partitions("/default/parts", 2)):
        topic.publish_many(["x"] * (number + 1))
    info = client.get_flight_info(PATH("default", "parts"))
    assert [client.do_get(each.ticket).read_all().num_rows for each in info.endpoints] == [1, 2]
    assert (info.total_records, info.ordered) == (3, False)
    with pytest.raises(KeyError, match="it has partitions: name one of them, as /default/parts-part-0"):
        put(client, ("default", "parts"), [messages(b"x")])


@pytest.mark.parametrize(
    ("descriptor", "error", "message"),
    [
        (PATH("default", "absent"), KeyError, "there is no topic /default/absent"),
        (PATH("orders"), pa.ArrowInvalid, "must have the form /namespace/topic"),
        (PATH("..", "orders"), pa.ArrowInvalid, "neither"),
        (PATH("a", "b", "c"), pa.ArrowInvalid, "not 3 parts"),
        (pa.flight.FlightDescriptor.for_command(b""), pa.ArrowInvalid, "give the path of a topic"),
        (pa.flight.FlightDescriptor.for_command(b'{"sql": {"query": "select 1"}}'), pa.ArrowInvalid, "give the path"),
        (pa.flight.FlightDescriptor.for_command(b'{"read": {"topic": 7}}'), pa.ArrowInvalid, "read.topic"),
    ],
)
def test_what_is_no_topic_is_refused_with_a_status_and_the_reason(
    client: pa.flight.FlightClient, descriptor: pa.flight.FlightDescriptor, error: type[Exception], message: str
) -> None:
    for ask in (client.get_flight_info, client.get_schema):
        with pytest.raises(error, match=message):
            ask(descriptor)


def test_a_ticket_of_a_recreated_topic_is_refused(storage: Storage, client: pa.flight.FlightClient) -> None:
    (endpoint,) = client.get_flight_info(PATH(ORDERS)).endpoints
    storage.delete_topic(ORDERS)
    storage.topic(ORDERS).publish("another")
    with pytest.raises(KeyError, match="another was created under its name"):
        client.do_get(endpoint.ticket).read_all()


def test_every_action_is_listed_with_what_it_takes(client: pa.flight.FlightClient) -> None:
    listed = {action.type: action.description for action in client.list_actions()}
    assert listed.items() <= ABOUT.items()
    assert {"create_topic", "topics", "logs"} <= listed.keys()
    (result,) = client.do_action(pa.flight.Action("create_topic", b'{"topic": "/default/made"}'))
    assert json.loads(result.body.to_pybytes())["topic"] == "/default/made"
    assert put(client, ("/default/made",), [messages(b"x")])[0]["rows"] == 1


# --- put


def test_messages_of_plain_columns_are_stored_and_answered(storage: Storage, client: pa.flight.FlightClient) -> None:
    answers = put(
        client,
        ("default", "orders"),
        [messages("tea", "rye", key=["anna", None]), messages("jam", key=["bob"])],
    )
    assert answers == [
        {"batches": 1, "rows": 2, "first_offset": 100, "end_offset": 102},
        {"batches": 1, "rows": 1, "first_offset": 102, "end_offset": 103},
    ]
    found = [(message.key, message.payload) for message in storage.topic(ORDERS).read(100)]
    assert found == [(b"anna", b"tea"), (None, b"rye"), (b"bob", b"jam")]


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
def test_payloads_may_be_any_plain_bytes_or_text(
    storage: Storage, client: pa.flight.FlightClient, kind: pa.DataType
) -> None:
    attributes = pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string()))
    batch = pa.RecordBatch.from_arrays([pa.array(["tea"], kind), attributes], names=["_payload", "attributes"])
    (answer,) = put(client, (ORDERS,), [batch])
    (message,) = storage.topic(ORDERS).read(answer["first_offset"])
    assert (message.payload, message.attributes) == (b"tea", {"a": "b"})


def test_rows_of_a_typed_topic_are_stored_in_any_order_of_columns(client: pa.flight.FlightClient) -> None:
    batch = pa.RecordBatch.from_pydict({"celsius": [1.5, None], "sensor": ["a", "b"]})
    (answer,) = put(client, ("weather", "readings"), [batch])
    assert (answer["first_offset"], answer["end_offset"]) == (0, 2)
    assert rows_of(client, PATH(READINGS)).select(["sensor", "celsius"]).to_pylist() == [
        {"sensor": "a", "celsius": 1.5},
        {"sensor": "b", "celsius": None},
    ]


def test_what_is_answered_is_durable_in_the_folder(storage: Storage, client: pa.flight.FlightClient) -> None:
    put(client, (ORDERS,), [messages(b"x")])
    assert storage.topic(ORDERS).stats().durable_end == 101


def test_a_batch_without_rows_is_answered_in_its_turn(client: pa.flight.FlightClient) -> None:
    empty = messages(b"x").slice(0, 0)
    answers = put(client, (ORDERS,), [messages(b"x"), empty, messages(b"y"), empty])
    assert [(each["rows"], each["first_offset"]) for each in answers] == [(1, 100), (0, None), (1, 101), (0, None)]


def test_a_stream_without_batches_stores_nothing(storage: Storage, client: pa.flight.FlightClient) -> None:
    assert put(client, (ORDERS,), [], messages(b"x").schema) == []
    assert storage.topic(ORDERS).stats().end == 100


@pytest.mark.parametrize(
    ("topic", "columns", "message"),
    [
        (ORDERS, {"payload": pa.array([1])}, "column 'payload' has type int64, not binary"),
        (
            ORDERS,
            {"payload": pa.array(["x"]).dictionary_encode()},
            "'payload' is dictionary-encoded; send it as string",
        ),
        (ORDERS, {"payload": pa.array(["x"], pa.string_view())}, "column 'payload' has type string_view, not binary"),
        (ORDERS, {"key": pa.array(["x"])}, "column 'payload' is missing"),
        (ORDERS, {"payload": pa.array(["x"]), "color": pa.array(["x"])}, "column 'color' is not known"),
        (ORDERS, {"payload": pa.array(["x"]), "_payload": pa.array(["x"])}, "'_payload' is there more than once"),
        (ORDERS, {"payload": pa.array(["x"]), "_offset": pa.array([1])}, "'_offset' is filled by Frazil; leave it out"),
        (READINGS, {"sensor": pa.array(["x"])}, "column 'celsius' is missing"),
        (READINGS, {"sensor": pa.array([1]), "celsius": pa.array([1.0])}, "column 'sensor' has type int64, not string"),
        (
            READINGS,
            {"sensor": pa.array(["x"]), "kelvin": pa.array([1.0])},
            "column 'kelvin' is not in the topic's schema",
        ),
        (
            READINGS,
            {"sensor": pa.array(["x"]).dictionary_encode()},
            "'sensor' is dictionary-encoded; send it as string",
        ),
    ],
)
def test_a_wrong_schema_is_an_invalid_argument_that_names_the_column(
    storage: Storage, client: pa.flight.FlightClient, topic: str, columns: dict[str, pa.Array], message: str
) -> None:
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    before = storage.topic(topic).stats().end
    with pytest.raises(pa.ArrowInvalid, match=message):
        put(client, (topic,), [batch])
    assert storage.topic(topic).stats().end == before


def test_a_null_where_none_may_be_is_refused_and_nothing_of_its_batch_is_stored(
    storage: Storage, client: pa.flight.FlightClient
) -> None:
    bad = pa.RecordBatch.from_pydict({"sensor": ["b", None], "celsius": [1.0, 2.0]})
    good = pa.RecordBatch.from_pydict({"sensor": ["a"], "celsius": [1.0]})
    writer, answers = client.do_put(PATH(READINGS), good.schema)
    for batch in (good, bad):
        writer.write_batch(batch)
    assert json.loads(answers.read().to_pybytes())["end_offset"] == 1
    with pytest.raises(pa.ArrowInvalid, match="column 'sensor' has 1 nulls"):
        writer.close()
    assert storage.topic(READINGS).stats().end == 1


def test_compressed_batches_are_refused_before_they_are_decompressed(client: pa.flight.FlightClient) -> None:
    batch = messages(b"x" * 1_000)
    options = pa.flight.FlightCallOptions(write_options=pa.ipc.IpcWriteOptions(compression="zstd"))
    writer, _ = client.do_put(PATH(ORDERS), batch.schema, options)
    writer.write_batch(batch)
    with pytest.raises(pa.ArrowInvalid, match="compressed; send it without compression"):
        writer.close()


def test_a_batch_of_too_many_rows_is_refused_with_the_limit(client: pa.flight.FlightClient) -> None:
    with pytest.raises(pa.ArrowInvalid, match="batch_rows_max = 1000"):
        put(client, (ORDERS,), [messages(*[b""] * 1_001)])


def test_a_message_larger_than_the_door_takes_is_refused_by_grpc_with_the_limit(
    storage: Storage, client: pa.flight.FlightClient
) -> None:
    with pytest.raises(pa.ArrowInvalid, match=r"larger than max \(\d+ vs. 2097152\)"):
        put(client, (ORDERS,), [messages(bytes(3 * 1024 * 1024))])
    assert storage.topic(ORDERS).stats().end == 100


def test_a_client_that_never_reads_its_answers_is_not_held_up(
    storage: Storage, client: pa.flight.FlightClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More answers than gRPC buffers for one who does not read; they are joined, and none is lost."""
    monkeypatch.setattr(plain_put, "ANSWERS_MAX", 8)
    batch, count = messages(b"x"), 6_000
    writer, answers = client.do_put(PATH(ORDERS), batch.schema)
    for _ in range(count):
        writer.write_batch(batch)
    writer.done_writing()
    found = []
    while (told := answers.read()) is not None:
        found.append(json.loads(told.to_pybytes()))
    writer.close()
    assert (sum(each["batches"] for each in found), sum(each["rows"] for each in found)) == (count, count)
    assert max(each["batches"] for each in found) > 1
    assert (found[0]["first_offset"], found[-1]["end_offset"]) == (100, 100 + count)
    assert storage.topic(ORDERS).stats().end == 100 + count


def test_a_stream_that_is_cut_keeps_what_was_answered_and_no_part_of_a_batch(
    storage: Storage, door: FlightDoor
) -> None:
    batch = messages(*[b"x" * 100] * 100)
    with pa.flight.connect(door.address) as client:
        writer, answers = client.do_put(PATH(ORDERS), batch.schema)
        for _ in range(3):
            writer.write_batch(batch)
        ends = [json.loads(answers.read().to_pybytes())["end_offset"] for _ in range(3)]
        for _ in range(5):
            writer.write_batch(batch)
        del writer, answers
    end = storage.topic(ORDERS).stats().end
    assert ends == [200, 300, 400]
    assert end >= 400
    assert end % 100 == 0


def test_many_writers_to_one_topic_get_offsets_of_their_own(storage: Storage, client: pa.flight.FlightClient) -> None:
    found: list[dict[str, Any]] = []

    def write(name: bytes) -> None:
        found.extend(put(client, (ORDERS,), [messages(name, name, name)] * 20))

    writers = [threading.Thread(target=write, args=(b"%d" % number,)) for number in range(4)]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    offsets = [offset for each in found for offset in range(each["first_offset"], each["end_offset"])]
    assert sorted(offsets) == list(range(100, 340))
    assert storage.topic(ORDERS).stats().end == 340


def test_columns_that_share_bytes_are_refused_before_they_are_decoded() -> None:
    """A message of a few kibibytes would be hundreds of mebibytes of columns."""
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    message = pa.record_batch([pa.array(range(100), pa.int64())] * 2, schema=schema).serialize()
    length = struct.unpack_from("<i", message, 4)[0]
    header, body = bytearray(memoryview(message)[8 : 8 + length]), memoryview(message)[8 + length :]
    second, size = (header.rfind(struct.pack(*packed)) for packed in (("<qq", 800, 800), ("<q", len(body))))
    assert second > 0
    assert size > 0
    struct.pack_into("<qq", header, second, 0, 800)
    struct.pack_into("<q", header, size, 800)
    received = wire.Received(b"", (), bytes(header), b"", bytes(body[:800]), 0)
    with pytest.raises(frazil.SchemaMismatch, match="overlap"):
        wire.received_batch(received, schema, FlightSettings(port=0))
