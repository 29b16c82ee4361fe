"""Tables of tenants, filled and read by a stock Arrow Flight client in Go."""

from __future__ import annotations

import json
import os
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


@pytest.fixture
def door(tmp_path: Path) -> Iterator[FlightDoor]:
    with frazil.open(tmp_path) as storage, flight_door(storage, FlightSettings(port=0)) as door:
        yield door


def go(door: FlightDoor, verb: str, *given: str) -> list[Any]:
    """What the client of the tenant `acme` found."""
    command = [str(part("flight-go")), verb, door.address.removeprefix("grpc://"), *given]
    told = {**os.environ, "FLIGHT_HEADERS": "x-frazil-tenant acme"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=told)
    assert not done.stderr
    return [value for line in done.stdout.splitlines() for value in json.loads(line).values()]


def test_it_fills_extends_and_reads_a_table(door: FlightDoor) -> None:
    assert [one["end_offset"] for one in go(door, "fill", "eu/orders", "tea", "32", "green", "black")] == [1, 2]
    assert [one["end_offset"] for one in go(door, "fill", "eu/orders", "tea", "64", "white")] == [3]
    assert go(door, "list", "") == [["eu", "orders"]]
    found = [(row["_offset"], row["tea"], row["number"]) for row in go(door, "rows", "eu/orders")]
    assert found == [(0, "green", 0), (1, "black", 1), (2, "white", 0)]
    (refused,) = go(door, "fill", "eu/orders", "cake", "64", "plum")
    assert refused["code"] == "InvalidArgument"
    assert "column 'tea' is missing, and may not be null" in refused["message"], "its columns are required by default"
    (stats,) = go(door, "act", "stats", '{"dataset": "eu", "table": "orders"}')
    assert (stats["topic"], stats["messages"]) == ("/acme.eu/orders", 3)
    (refused,) = go(door, "fill", "eu/traces", "tea", "32", "green")
    assert "OpenTelemetry" in refused["message"]
