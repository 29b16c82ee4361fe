"""Tenants at the Flight door of a real server: none reads, writes, lists, slows or guesses anything of another."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight
import pytest

from parts.processes import pause
from parts.tenants import SECTIONS, FlightTenant, Secured, batch

pytestmark = pytest.mark.timeout(180)

ROWS = batch(secret=["of the bank"])
Call = Callable[[FlightTenant, str], Any]
CALLS: dict[str, Call] = {
    "put": lambda client, tenant: client.put((f"{tenant}.eu", "readings"), ROWS),
    "put by name": lambda client, tenant: client.put((f"/{tenant}.eu/readings",), ROWS),
    "put into what is absent": lambda client, tenant: client.put((f"{tenant}.eu", "absent"), ROWS),
    "info": lambda client, tenant: client.info(f"{tenant}.eu", "readings"),
    "schema": lambda client, tenant: client.schema(f"/{tenant}.eu/readings"),
    "read": lambda client, tenant: client.read(topic=f"/{tenant}.eu/readings"),
    "ticket": lambda client, tenant: got(client, {"read": {"topic": f"/{tenant}.eu/readings", "notes": False}}),
    "range": lambda client, tenant: got(
        client, {"topic": f"/{tenant}.eu/readings", "log_id": "x", "start": 0, "end": 1}
    ),
    "stats": lambda client, tenant: client.act("stats", topic=f"/{tenant}.eu/readings"),
    "flush": lambda client, tenant: client.act("flush", topic=f"/{tenant}.eu/readings", timeout_ms=0),
}
BY_HEADER: dict[str, Call] = {
    "put": lambda client, _: client.put(("eu", "readings"), ROWS),
    "put into the default dataset": lambda client, _: client.put(("readings",), ROWS),
    "info": lambda client, _: client.info("eu", "readings"),
    "schema": lambda client, _: client.schema("eu", "readings"),
    "read": lambda client, _: client.read(dataset="eu", table="readings"),
    "ticket": lambda client, _: got(client, {"read": {"dataset": "eu", "table": "readings", "notes": False}}),
    "stats": lambda client, _: client.act("stats", dataset="eu", table="readings"),
    "flush": lambda client, _: client.act("flush", dataset="eu", table="readings", timeout_ms=0),
}


def got(client: FlightTenant, ticket: dict[str, Any]) -> pa.Table:
    return client.client.do_get(pa.flight.Ticket(json.dumps(ticket).encode()), client.options).read_all()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    found = Secured(tmp_path_factory.mktemp("isolation"), others=SECTIONS)
    found.start()
    try:
        yield found
        assert "Traceback" not in found.log()
    finally:
        found.kill()


@pytest.fixture(scope="module")
def keys(server: Secured) -> dict[str, str]:
    """Two tenants, of whom the bank has a table."""
    found = {name: server.tenant(name) for name in ("acme", "bank")}
    with FlightTenant(server.flight, found["bank"]) as bank:
        bank.put(("eu", "readings"), ROWS)
    return found


def refusal(call: Call, client: FlightTenant, tenant: str) -> str:
    """The text of the error, without the name of the tenant."""
    with pytest.raises((pa.ArrowException, OSError, KeyError)) as refused:
        call(client, tenant)
    text = str(refused.value)
    assert "may not" in text, text
    return text.replace(tenant, "TENANT")


@pytest.mark.parametrize("name", CALLS)
def test_a_foreign_tenant_and_none_at_all_are_refused_alike(server: Secured, keys: dict[str, str], name: str) -> None:
    with FlightTenant(server.flight, keys["acme"]) as acme:
        assert refusal(CALLS[name], acme, "bank") == refusal(CALLS[name], acme, "nobody")


@pytest.mark.parametrize("name", BY_HEADER)
def test_a_header_gives_no_rights(server: Secured, keys: dict[str, str], name: str) -> None:
    found = []
    for tenant in ("bank", "nobody"):
        with FlightTenant(server.flight, keys["acme"], tenant=tenant) as acme:
            found.append(refusal(BY_HEADER[name], acme, tenant))
            assert acme.flights() == acme.flights(f"/{tenant}.") == []
    assert found[0] == found[1]
    with FlightTenant(server.flight, keys["bank"]) as bank:
        assert bank.rows("eu", "readings") == [{"secret": "of the bank"}]
        assert bank.flights("/bank.default") == []


def test_the_same_names_are_tables_of_each(server: Secured, keys: dict[str, str]) -> None:
    with FlightTenant(server.flight, keys["acme"]) as acme, FlightTenant(server.flight, keys["bank"]) as bank:
        acme.put(("us", "orders"), batch(x=[1]))
        bank.put(("us", "orders"), batch(y=["b"]))
        assert acme.rows("us", "orders") == [{"x": 1}]
        assert bank.rows("us", "orders") == [{"y": "b"}]
        assert ["us", "orders"] in acme.flights()
        assert not acme.flights("/bank")
        (endpoint,) = bank.info("us", "orders").endpoints
        with pytest.raises(pa.flight.FlightUnauthorizedError, match="may not"):
            acme.client.do_get(endpoint.ticket, acme.options).read_all()


def test_who_may_act_for_several_names_the_tenant(server: Secured, keys: dict[str, str]) -> None:
    key = server.as_admin("POST", "/v1/keys", {"owner": "collector"})
    for tenant in keys:
        given = {"principal": key["principal"], "role": "tenant", "scope": f"/{tenant}.*/*"}
        server.as_admin("POST", "/v1/bindings", given)
    with FlightTenant(server.flight, key["key"]) as neither:
        with pytest.raises(pa.flight.FlightUnauthorizedError, match="/several/rows"):
            neither.put(("several", "rows"), ROWS)
        with pytest.raises(pa.ArrowException, match="x-frazil-tenant: name the tenant"):
            neither.act("stats", dataset="several", table="rows")
    for tenant in ("acme", "bank"):
        with FlightTenant(server.flight, key["key"], tenant=tenant, dataset="several") as client:
            client.put(("rows",), batch(of=[tenant]))
            assert client.rows("several", "rows") == [{"of": tenant}]
            assert ["several", "rows"] in client.flights()
    with FlightTenant(server.flight, keys["acme"]) as acme:
        assert acme.rows("several", "rows") == [{"of": "acme"}]


def test_limits_of_one_tenant_hold_for_its_rows_and_nobody_elses(server: Secured, keys: dict[str, str]) -> None:
    small = server.tenant("small", datasets=1, bytes_per_second=100_000)
    with FlightTenant(server.flight, small) as client, FlightTenant(server.flight, keys["bank"]) as bank:
        client.put(("one", "rows"), batch(x=[1]))
        with pytest.raises(pa.ArrowException, match="datasets"):
            client.put(("two", "rows"), batch(x=[1]))
        assert client.flights() == [["one", "rows"]]
        large = batch(x=["x" * 90_000])
        with pytest.raises(pa.ArrowException, match="bytes_per_second"):
            client.put(("one", "large"), large, large, large)
        assert bank.put(("eu", "large"), large, large, large)[-1]["end_offset"] == 3
        server.as_admin("PUT", "/v1/tenants/small/settings", {"bytes_per_second": None, "stored_bytes": 1_000})
        while not (refused := _refused(client)):
            pause(0.05)
        assert "stored_bytes" in refused
        with pytest.raises(pa.ArrowException, match="stored_bytes"):
            client.put(("one", "new"), batch(x=[1]))
        assert client.flights() == [["one", "large"], ["one", "rows"]], "a refused batch creates nothing"


def _refused(client: FlightTenant) -> str:
    """The error of one more row; nothing if it was taken: stored bytes are measured once a second."""
    try:
        client.put(("one", "rows"), batch(x=[1]))
    except pa.ArrowException as error:
        return str(error)
    return ""
