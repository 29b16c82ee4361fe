"""A folder behind its Flight door, and a client of it, in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import frazil
from frazil.core.settings import FlightSettings
from frazil.doors.flight.door import FlightDoor, flight_door


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[frazil.Storage]:
    with frazil.open(tmp_path / "data") as storage:
        yield storage


@pytest.fixture
def door(owner: frazil.Storage) -> Iterator[FlightDoor]:
    with flight_door(owner, FlightSettings(port=0)) as door:
        yield door


@pytest.fixture
def remote(door: FlightDoor) -> Iterator[frazil.RemoteStorage]:
    with frazil.connect(door.address, give_up_ms=10_000) as storage:
        yield storage
