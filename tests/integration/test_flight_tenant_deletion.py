"""A tenant that is deleted while it writes by Flight, and one that takes what all tenants share."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.flight
import pytest

from frazil.core.settings import Settings
from frazil.meta.opening import open_meta
from parts.tenants import SECTIONS, FlightTenant, Secured, batch

pytestmark = pytest.mark.timeout(240)
STREAMS_MAX = 12
ROWS = batch(x=list(range(100)))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    flight = {"port": 0, "streams_max": STREAMS_MAX}
    found = Secured(tmp_path_factory.mktemp("deletion"), others={**SECTIONS, "flight": flight})
    found.start()
    try:
        yield found
        assert "Traceback" not in found.log()
    finally:
        found.kill()


def write_on(client: FlightTenant, ended: threading.Event, begun: threading.Event) -> None:
    """New tables and streams until the tenant is refused."""
    number = 0
    while not ended.is_set():
        try:
            client.put((f"d{number % 7}", f"t{number % 5}"), ROWS, ROWS)
        except (pa.ArrowException, OSError):
            if ended.is_set():
                return
        number += 1
        if number > 3:
            begun.set()


def left(folder: Path, word: bytes) -> list[str]:
    found = [str(one) for one in folder.rglob("*") if word.decode() in one.name and one.is_file()]
    store = open_meta(Settings.of_folder(folder))
    try:
        return found + [one.key for one in store.list("/") if word in one.key.encode() or word in one.value]
    finally:
        store.close()


@pytest.mark.parametrize("acts_for_it", ["its own key", "another's key"])
def test_a_tenant_that_is_deleted_while_it_writes_leaves_nothing(server: Secured, acts_for_it: str) -> None:
    name = "gone" if acts_for_it == "its own key" else "leaving"
    key, headers = server.tenant(name), {}
    if acts_for_it != "its own key":
        other = server.as_admin("POST", "/v1/keys", {"owner": "collector"})
        server.as_admin("POST", "/v1/bindings", {"principal": other["principal"], "role": "admin", "scope": "*"})
        key, headers = other["key"], {"tenant": name}
    ended, begun = threading.Event(), threading.Event()
    with ExitStack() as stack:
        threads = []
        for _ in range(3):
            client = stack.enter_context(FlightTenant(server.flight, key, **headers))
            threads.append(threading.Thread(target=write_on, args=(client, ended, begun)))
        for thread in threads:
            thread.start()
        assert begun.wait(60)
        while not (report := server.as_admin("DELETE", f"/v1/tenants/{name}?force=true"))["done"]:
            pass  # it ends after some seconds each time
        assert report["left"] == []
        ended.set()
        for thread in threads:
            thread.join()
        with pytest.raises((pa.ArrowException, OSError, KeyError)):
            client.put(("eu", "late"), ROWS)
    assert left(server.folder / "data", name.encode()) == []


def test_one_tenant_leaves_streams_to_the_others(server: Secured) -> None:
    greedy, other = server.tenant("greedy"), server.tenant("modest")
    with ExitStack() as stack:
        client = stack.enter_context(FlightTenant(server.flight, greedy))
        client.put(("eu", "t"), ROWS)
        ticket = {"read": {"dataset": "eu", "table": "t", "follow": True, "notes": False}}
        streams = []
        for _ in range(STREAMS_MAX // 2):
            streams.append(client.client.do_get(pa.flight.Ticket(json.dumps(ticket).encode()), client.options))
            streams[-1].read_chunk()
        with pytest.raises(pa.ArrowException, match="concurrent streams"):
            client.put(("eu", "t"), ROWS)
        modest = stack.enter_context(FlightTenant(server.flight, other))
        assert modest.put(("eu", "t"), ROWS)[0]["rows"] == 100
        for stream in streams:
            stream.cancel()
