"""The Flight door: exactly the range asked for, only what is durable, and errors that say what is wrong."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight
import pytest

import frazil
from frazil.core.settings import FlightSettings
from frazil.doors.flight import door as flight
from frazil.doors.flight.door import FlightDoor, flight_door
from frazil.doors.flight.get import reading as flight_reading
from frazil.log.info import as_json, from_json, log_info
from frazil.log.storage import Storage
from frazil.node.movers.log_source import RemoteOwner
from frazil.node.tiers.logs import fetch_range

TOPIC = "/default/orders"
TYPED = pa.schema([pa.field("sensor", pa.string(), nullable=False), pa.field("celsius", pa.float64())])


@contextlib.contextmanager
def listening(storage: Storage) -> Iterator[FlightDoor]:
    with flight_door(storage, FlightSettings(port=0)) as door:
        yield door


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    with frazil.open(tmp_path) as storage:
        topic = storage.topic(TOPIC)
        for first in range(0, 100, 10):
            topic.publish_many([f"message {number}" for number in range(first, first + 10)])
        yield storage


@pytest.fixture
def door(storage: Storage) -> Iterator[FlightDoor]:
    with listening(storage) as door:
        yield door


@pytest.fixture
def client(door: FlightDoor) -> Iterator[pa.flight.FlightClient]:
    with pa.flight.connect(door.address) as client:
        yield client


def log_id(storage: Storage) -> str:
    return storage.topic(TOPIC).stats().log_id


def get(client: pa.flight.FlightClient, ticket: Any) -> pa.Table:
    raw = ticket if isinstance(ticket, bytes) else json.dumps(ticket).encode()
    return client.do_get(pa.flight.Ticket(raw)).read_all()


def test_a_range_is_exactly_the_rows_asked_for(storage: Storage, door: FlightDoor) -> None:
    batches = list(fetch_range(door.address, TOPIC, log_id(storage), frazil.OffsetRange(7, 42)))
    rows = pa.Table.from_batches(batches)
    assert rows["_offset"].to_pylist() == list(range(7, 42))
    assert rows["_payload"].to_pylist() == [f"message {number}".encode() for number in range(7, 42)]
    assert rows.schema.equals(next(storage.topic(TOPIC).read_batches()).schema)


def test_rows_of_before_a_change_of_schema_come_in_the_present_form(storage: Storage, door: FlightDoor) -> None:
    topic = storage.topic("/weather/readings", schema=TYPED)
    topic.publish_many(pa.RecordBatch.from_pylist([{"sensor": "a", "celsius": 1.5}], schema=TYPED))
    wider = TYPED.append(pa.field("pascal", pa.int64()))
    storage.change_schema("/weather/readings", wider)
    topic.publish_many(pa.RecordBatch.from_pylist([{"sensor": "b", "celsius": None, "pascal": 7}], schema=wider))
    wanted = frazil.OffsetRange(0, 2)
    rows = pa.Table.from_batches(list(fetch_range(door.address, topic.name, topic.stats().log_id, wanted)))
    assert rows.select(["_offset", "sensor", "celsius", "pascal"]).to_pylist() == [
        {"_offset": 0, "sensor": "a", "celsius": 1.5, "pascal": None},
        {"_offset": 1, "sensor": "b", "celsius": None, "pascal": 7},
    ]


def test_the_list_of_logs_is_what_the_owner_knows(storage: Storage, door: FlightDoor) -> None:
    storage.topic("/weather/readings", schema=TYPED)
    remote = RemoteOwner(door.address)
    assert remote.logs() == [log_info(storage, name) for name in (TOPIC, "/weather/readings")]
    info = remote.logs()[0]
    assert (info.first_offset, info.durable_end) == (0, 100)
    assert from_json(json.loads(json.dumps(as_json(info)))) == info


def test_what_is_only_written_is_made_durable_before_it_is_listed(tmp_path: Path) -> None:
    wal = frazil.WalSettings(sync_mode=frazil.SyncMode.NONE)
    with frazil.open(frazil.Settings(data=tmp_path, wal=wal)) as storage, listening(storage) as door:
        topic = storage.topic(TOPIC)
        topic.publish("x")
        assert topic.stats().durable_end == 0
        (info,) = RemoteOwner(door.address).logs()
        assert (info.durable_end, topic.stats().durable_end) == (1, 1)


def test_rows_that_are_not_durable_are_refused(tmp_path: Path) -> None:
    wal = frazil.WalSettings(sync_mode=frazil.SyncMode.NONE)
    with frazil.open(frazil.Settings(data=tmp_path, wal=wal)) as storage, listening(storage) as door:
        topic = storage.topic(TOPIC)
        topic.publish("x")
        with (
            pa.flight.connect(door.address) as client,
            pytest.raises(pa.flight.FlightServerError, match="has offsets 0 up to 0, not 0"),
        ):
            get(client, {"topic": TOPIC, "log_id": topic.stats().log_id, "start": 0, "end": 1})


def test_a_corrupt_topic_is_left_out_of_the_list_and_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with frazil.open(tmp_path) as storage:
        for name in (TOPIC, "/default/good"):
            storage.topic(name).publish_many([b"x" * 100] * 3)
    (segment,) = (tmp_path / "log" / "default" / "orders").glob("*.wal")
    segment.write_bytes(b"\xff" * 64 + segment.read_bytes()[64:])
    with frazil.open(tmp_path) as storage, listening(storage) as door:
        remote = RemoteOwner(door.address)
        for _ in range(2):
            assert [str(info.topic) for info in remote.logs()] == ["/default/good"]
    assert [record.topic for record in caplog.records if hasattr(record, "topic")] == [TOPIC]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"topic": "/default/absent"}, "there is no topic /default/absent"),
        ({"topic": "nonsense"}, "nonsense"),
        ({"log_id": "another"}, "another log now"),
        ({"end": 101}, "has offsets 0 up to 100, not 100"),
        ({"start": 100, "end": 101}, "has offsets 0 up to 100, not 100"),
        ({"start": 5, "end": 5}, "range is empty"),
        ({"start": -1}, "start: "),
        ({"start": "0"}, "start: "),
        ({"more": 1}, "more: "),
        ({"topic": "/a/" + "b" * 5_000}, "bytes, more than 4096"),
    ],
)
def test_a_ticket_that_cannot_be_served_is_refused_with_the_reason(
    storage: Storage, client: pa.flight.FlightClient, change: dict[str, Any], message: str
) -> None:
    ticket = {"topic": TOPIC, "log_id": log_id(storage), "start": 0, "end": 10, **change}
    with pytest.raises(pa.flight.FlightServerError) as raised:
        get(client, ticket)
    assert message in str(raised.value)
    assert "Traceback" not in str(raised.value)
    assert json.loads(raised.value.extra_info)["error"]
    assert get(client, {"topic": TOPIC, "log_id": log_id(storage), "start": 0, "end": 10}).num_rows == 10


@pytest.mark.parametrize("ticket", [b"", b"\xff\xfe", b"[]", b"{}", b"{" * 2_000])
def test_bytes_that_are_no_ticket_are_refused(client: pa.flight.FlightClient, ticket: bytes) -> None:
    with pytest.raises(pa.flight.FlightServerError, match="the ticket is malformed"):
        get(client, ticket)


def test_rows_that_retention_removed_are_refused_with_what_is_there(tmp_path: Path) -> None:
    wal = frazil.WalSettings(max_file_size=64 * 1024, retention=frazil.RetentionSettings(bytes=64 * 1024))
    with frazil.open(frazil.Settings(data=tmp_path, wal=wal)) as storage, listening(storage) as door:
        topic = storage.topic(TOPIC)
        for _ in range(20):
            topic.publish_many([b"x" * 1_000] * 20)
        storage.maintain()
        first = topic.stats().first_offset
        assert first > 0
        with (
            pa.flight.connect(door.address) as client,
            pytest.raises(pa.flight.FlightServerError, match=f"has offsets {first} up to 400, not {first - 1}"),
        ):
            get(client, {"topic": TOPIC, "log_id": topic.stats().log_id, "start": first - 1, "end": 400})


def test_more_streams_than_the_limit_are_told_to_try_later(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    ticket = {"topic": TOPIC, "log_id": log_id(storage), "start": 0, "end": 100}
    with listening(storage) as door, pa.flight.connect(door.address) as client:
        monkeypatch.setattr(flight_reading, "RANGES_MAX", 0)
        with pytest.raises(pa.flight.FlightUnavailableError, match="try again later"):
            get(client, ticket)
        monkeypatch.setattr(flight_reading, "RANGES_MAX", 1)
        for _ in range(3):
            assert get(client, ticket).num_rows == 100


def test_an_unknown_action_is_named(client: pa.flight.FlightClient) -> None:
    with pytest.raises(pa.flight.FlightServerError, match="no action 'drop'"):
        list(client.do_action("drop"))
    actions = [action.type for action in client.list_actions()]
    assert "logs" in actions
    assert "lead" not in actions


def test_a_port_in_use_is_an_error_that_names_the_setting(storage: Storage, door: FlightDoor) -> None:
    with pytest.raises(frazil.ListenFailed, match=r"flight\.port"):
        flight_door(storage, FlightSettings(port=door.port)).__enter__()


def test_a_client_that_stops_reading_does_not_hold_up_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight, "STOP_SECONDS_MAX", 0.2)
    with frazil.open(tmp_path) as storage:
        topic = storage.topic(TOPIC)
        for _ in range(16):
            topic.publish_many([b"x" * 2**20] * 4)
        with listening(storage) as door:
            client = pa.flight.connect(door.address)
            ticket = {"topic": TOPIC, "log_id": topic.stats().log_id, "start": 0, "end": 64}
            stream = client.do_get(pa.flight.Ticket(json.dumps(ticket).encode()))
            assert stream.read_chunk().data.num_rows
        stream.cancel()
        client.close()


def test_an_owner_that_is_gone_is_an_error_with_its_address(storage: Storage) -> None:
    with listening(storage) as door:
        remote = RemoteOwner(door.address)
        assert remote.logs()
    with pytest.raises(frazil.OwnerUnreachable, match=door.address):
        remote.logs()


def test_a_fetched_range_is_aligned_as_native_code_needs_it(storage: Storage, door: FlightDoor) -> None:
    """What gRPC hands over as it lies on the wire mostly is not, and PyIceberg's transforms panic on it."""
    topic = storage.topic(TOPIC)
    for _ in range(50):
        topic.publish_many([b"x" * (number % 100) for number in range(100)])
    wanted = frazil.OffsetRange(0, topic.stats().end)
    for batch in fetch_range(door.address, TOPIC, log_id(storage), wanted):
        for name in ("_offset", "_append_time", "_publish_time"):
            assert batch.column(name).buffers()[1].address % 8 == 0


def test_the_ranges_and_rows_that_were_handed_out_are_counted(storage: Storage, door: FlightDoor) -> None:
    rows = sum(batch.num_rows for batch in fetch_range(door.address, TOPIC, log_id(storage), frazil.OffsetRange(5, 25)))
    counts = door.counts
    assert (rows, counts.rows, counts.streams, counts.refused) == (20, 20, 1, 0)
