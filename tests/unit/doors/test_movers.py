"""What movers in other processes ask of a folder's owner: each field is checked, and only the leader is listened to."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight
import pytest

import frazil
from frazil.core.settings import FlightSettings
from frazil.core.settings.broker import BrokerSettings
from frazil.doors.flight import movers
from frazil.doors.flight.door import flight_door
from frazil.node.movers.lease import MoverName
from frazil.node.movers.log_source import RemoteOwner
from frazil.node.movers.status_codec import packed
from frazil.node.movers.status_file import StatusFile, read_status
from frazil.node.movers.table_progress import status_path
from frazil.node.movers.tick_report import TickReport, TopicReport
from frazil.node.node import Node
from frazil.node.telemetry.opening import read_tenants, stored_tenants
from frazil.testing import FakeClock

ONE = MoverName("one", "host-1", 11)
TWO = MoverName("two", "host-2", 22)
TOLD = {"state": "running", "rows": 1, "commits": 1, "error": None, "topics": {}}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def settings(tmp_path: Path) -> frazil.Settings:
    return frazil.Settings(data=tmp_path, flight=FlightSettings(port=0))


@pytest.fixture
def owner(settings: frazil.Settings, clock: FakeClock) -> Iterator[RemoteOwner]:
    with (
        frazil.open(settings) as storage,
        flight_door(Node(storage, clock=clock), settings.flight, movers=True) as door,
        contextlib.closing(RemoteOwner(door.address)) as owner,
    ):
        yield owner


def test_the_lead_is_lent_over_flight(owner: RemoteOwner, clock: FakeClock) -> None:
    assert owner.ask_to_lead(ONE, 5_000).leader == ONE
    assert owner.ask_to_lead(TWO, 5_000).leader == ONE
    owner.give_up(ONE)
    assert owner.ask_to_lead(TWO, 5_000).left_ms == 5_000
    clock.advance(5_000_000)
    assert owner.ask_to_lead(ONE, 5_000).leader == ONE


def test_a_mover_elsewhere_learns_the_tenants_of_the_owner(owner: RemoteOwner, settings: frazil.Settings) -> None:
    assert owner.tenants() == {}
    lifted = [{"source": "resource", "key": "k8s.pod.name", "column": "pod", "type": "string"}]
    with stored_tenants(settings) as admin:
        admin.create("acme", {"lifted": lifted, "freshness_ms": 700})
    assert owner.tenants() == read_tenants(settings)
    assert [one.column for one in owner.tenants()["acme"].lifted] == ["pod"]


def test_an_owner_that_tells_no_tenants_is_unavailable(settings: frazil.Settings) -> None:
    """Without them, the tables of telemetry would lack columns."""
    with (
        frazil.open(settings) as storage,
        flight_door(storage, settings.flight) as door,
        contextlib.closing(RemoteOwner(door.address)) as owner,
        pytest.raises(frazil.OwnerUnreachable, match="there is no action 'tenants'"),
    ):
        owner.tenants()


def test_what_the_leader_tells_is_written_with_the_owners_time(
    owner: RemoteOwner, settings: frazil.Settings, clock: FakeClock
) -> None:
    owner.ask_to_lead(ONE, 5_000)
    topic = TopicReport("/a/b", "id", "a.b", 9, 7, 0.5, "an error")
    StatusFile(lambda told: owner.tell(ONE, told), clock).ticked(TickReport(7, 1, {"/a/b": topic}))
    told = read_status(settings, clock) or {}
    assert (told["host"], told["pid"], told["time_us"], told["rows"]) == ("host-1", 11, clock.now_us(), 7)
    last = {"message": "an error", "time_us": clock.now_us()}
    assert told["topics"] == {"/a/b": {**asdict(topic), "lag_rows": 2, "last_error": last}}


def test_one_that_no_longer_leads_is_not_listened_to(
    owner: RemoteOwner, settings: frazil.Settings, clock: FakeClock
) -> None:
    owner.ask_to_lead(ONE, 5_000)
    clock.advance(5_000_000)
    owner.ask_to_lead(TWO, 5_000)
    with pytest.raises(frazil.AnotherLeads, match="process 22 on host-2"):
        owner.tell(ONE, TOLD)
    assert not status_path(settings).exists()
    owner.tell(TWO, TOLD)
    assert (read_status(settings, clock) or {})["pid"] == 22


def test_where_nobody_leads_nobody_is_listened_to(
    owner: RemoteOwner, settings: frazil.Settings, clock: FakeClock
) -> None:
    with pytest.raises(frazil.FrazilError, match="no mover leads"):
        owner.tell(ONE, TOLD)
    owner.ask_to_lead(ONE, 5_000)
    clock.advance(5_000_000)
    for mover in (ONE, TWO):
        with pytest.raises(frazil.FrazilError, match="no mover leads"):
            owner.tell(mover, TOLD)
    assert not status_path(settings).exists()


def test_what_a_leader_tells_of_a_table_removes_nothing(tmp_path: Path, clock: FakeClock) -> None:
    """Anyone who reaches the door may lead and tell: retention asks the catalog."""
    wal = frazil.WalSettings(max_file_size=64 * 1024, retention=frazil.RetentionSettings(bytes=1))
    settings = frazil.Settings(data=tmp_path, wal=wal, flight=FlightSettings(port=0))
    with (
        frazil.open(settings) as storage,
        flight_door(Node(storage, clock=clock), settings.flight, movers=True) as door,
        contextlib.closing(RemoteOwner(door.address)) as owner,
    ):
        topic = storage.topic("/a/b")
        owner.ask_to_lead(ONE, 5_000)
        report = TopicReport("/a/b", topic.log.log_id, "a.b", 2**62, 2**62, 0.0)
        StatusFile(lambda told: owner.tell(ONE, told), clock).ticked(TickReport(7, 1, {"/a/b": report}))
        for _ in range(60):
            topic.publish(bytes(4 * 1024))
        storage.maintain()
        assert topic.log.first_offset == 0


@pytest.mark.parametrize(
    ("action", "body", "field"),
    [
        ("lead", b"", "lead"),
        ("lead", b"[1]", "lead"),
        ("lead", {"id": "x", "host": "h", "pid": 1}, "lease_ms"),
        ("lead", {"id": "x", "host": "h", "pid": 1, "lease_ms": 10**12}, "lease_ms"),
        ("lead", {"id": "x", "host": "h", "pid": -1, "lease_ms": 5_000}, "pid"),
        ("lead", {"id": "x" * 300, "host": "h", "pid": 1, "lease_ms": 5_000}, "id"),
        ("give_up", {"id": ""}, "id"),
        ("tell", {"id": "x", "host": "h", "pid": 1, **TOLD, "state": "owned"}, "state"),
        ("tell", {"id": "x", "host": "h", "pid": 1, **TOLD, "topics": {"/a/b": {}}}, "topics./a/b.log_id"),
        ("tell", {"id": "x", "host": "h", "pid": 1, **TOLD, "rows": -1}, "rows"),
    ],
)
def test_what_is_malformed_is_refused_by_its_field(
    owner: RemoteOwner, settings: frazil.Settings, action: str, body: Any, field: str
) -> None:
    raw = body if isinstance(body, bytes) else packed(body) if action == "tell" else json.dumps(body).encode()
    with (
        pa.flight.connect(owner.address) as client,
        pytest.raises(pa.flight.FlightServerError, match=rf"the {action} is malformed: .*{field}: "),
    ):
        list(client.do_action(pa.flight.Action(action, raw)))
    assert not status_path(settings).exists()


def test_a_body_that_is_too_large_is_refused(owner: RemoteOwner) -> None:
    with pytest.raises(frazil.OwnerUnreachable, match=f"more than {16 * 2**20} bytes"):
        owner.tell(ONE, {**TOLD, "error": "x" * (16 * 2**20 + 1)})


def test_a_body_that_zlib_did_not_make_is_refused(owner: RemoteOwner) -> None:
    whole = packed({"id": "x", "host": "h", "pid": 1, **TOLD})
    for raw in (b"", b"{}", whole[:-5], whole[3:]):
        with (
            pa.flight.connect(owner.address) as client,
            pytest.raises(pa.flight.FlightServerError, match=r"the status report is (not zlib|truncated)"),
        ):
            list(client.do_action(pa.flight.Action("tell", raw)))


def test_a_mover_of_twenty_thousand_topics_is_heard(owner: RemoteOwner, settings: frazil.Settings) -> None:
    owner.ask_to_lead(ONE, 5_000)
    one = {**asdict(TopicReport("/a/b", "id", "a.b", 9, 7, 0.5, None)), "lag_rows": 2, "last_error": None}
    topics = {f"/a/{at}": {**one, "topic": f"/a/{at}", "log_id": str(uuid.uuid4())} for at in range(20_000)}
    owner.tell(ONE, {**TOLD, "topics": topics})
    told = read_status(settings, FakeClock()) or {}
    assert len(told["topics"]) == 20_000


def test_every_field_of_a_report_is_told() -> None:
    assert set(TopicReport.__dataclass_fields__) <= set(movers._Topic.model_fields)


def test_a_door_of_a_mover_that_owns_the_folder_lends_no_lead(settings: frazil.Settings) -> None:
    with (
        frazil.open(settings) as storage,
        flight_door(storage, settings.flight) as door,
        contextlib.closing(RemoteOwner(door.address)) as owner,
    ):
        assert owner.logs() == []
        with pytest.raises(frazil.OwnerUnreachable, match="no action 'lead'"):
            owner.ask_to_lead(ONE, 5_000)


@pytest.mark.parametrize(
    ("host", "advertised", "expected"),
    [
        ("127.0.0.1", None, "grpc://127.0.0.1:{port}"),
        ("127.0.0.1", "broker-1.example:7777", "grpc://broker-1.example:7777"),
        ("127.0.0.1", "grpc://[2001:db8::7]:7777", "grpc://[2001:db8::7]:7777"),
    ],
)
def test_other_hosts_are_told_the_address_that_the_settings_give(
    tmp_path: Path, host: str, advertised: str | None, expected: str
) -> None:
    settings = FlightSettings(host=host, port=0, advertised=advertised)
    with frazil.open(tmp_path) as storage, flight_door(storage, settings) as door:
        assert door.advertised == expected.format(port=door.port)
        assert door.address == f"grpc://127.0.0.1:{door.port}"


@pytest.mark.parametrize("wrong", ["broker", "broker:", "http://broker:1", "broker:0", "broker:70000", "a b:1"])
@pytest.mark.parametrize("kind", [FlightSettings, BrokerSettings])
def test_an_advertised_address_needs_host_and_port(kind: type[FlightSettings | BrokerSettings], wrong: str) -> None:
    with pytest.raises(ValueError, match="must be host:port"):
        kind(advertised=wrong)
    assert kind(advertised="[2001:db8::7]:6650").advertised == "[2001:db8::7]:6650"


def test_no_address_of_an_owner_is_an_error_that_says_how_it_looks() -> None:
    with pytest.raises(frazil.InvalidInput, match="use grpc://host:port"):
        RemoteOwner("somewhere")
