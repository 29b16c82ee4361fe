"""A stock Arrow Flight client in Go: another implementation of Flight, which knows nothing of Frazil."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import frazil
from frazil.core.settings import FlightSettings
from frazil.doors.flight.door import FlightDoor, flight_door
from parts.processes import PARTS, part

HAS_CLIENT = (PARTS / "flight-go").exists()
pytestmark = pytest.mark.skipif(not HAS_CLIENT, reason="the client could not be built here; `make parts` says why")

TOPIC = "/shop/orders"


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[frazil.Storage]:
    with frazil.open(tmp_path) as storage:
        storage.topic(TOPIC)
        storage.topic("/weather/alerts")
        yield storage


@pytest.fixture
def door(storage: frazil.Storage) -> Iterator[FlightDoor]:
    with flight_door(storage, FlightSettings(port=0)) as door:
        yield door


def go(door: FlightDoor, verb: str, *given: str) -> list[dict[str, Any]]:
    """What the client found, one object for each."""
    command = [str(part("flight-go")), verb, door.address.removeprefix("grpc://"), *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert not done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_it_lists_puts_and_gets(storage: frazil.Storage, door: FlightDoor) -> None:
    assert go(door, "list", "") == [{"flight": ["shop", "orders"]}, {"flight": ["weather", "alerts"]}]
    assert go(door, "list", "/shop/") == [{"flight": ["shop", "orders"]}]
    assert [found["stored"] for found in go(door, "put", TOPIC, "payload", "tea", "rye bread")] == [
        {"batches": 1, "rows": 1, "first_offset": 0, "end_offset": 1},
        {"batches": 1, "rows": 1, "first_offset": 1, "end_offset": 2},
    ]
    assert [message.payload for message in storage.topic(TOPIC).read()] == [b"tea", b"rye bread"]
    assert go(door, "get", TOPIC) == [{"row": [0, "tea"]}, {"row": [1, "rye bread"]}]


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        (("put", TOPIC, "color", "tea"), "InvalidArgument", "column 'color' is not known"),
        (("put", "/shop/absent", "payload", "tea"), "NotFound", "there is no topic /shop/absent"),
        (("get", "/shop/absent"), "NotFound", "there is no topic /shop/absent"),
    ],
)
def test_it_gets_the_status_of_an_error(door: FlightDoor, given: tuple[str, ...], code: str, message: str) -> None:
    (found,) = go(door, *given)
    assert found["error"]["code"] == code
    assert message in found["error"]["message"]
