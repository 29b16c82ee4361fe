"""A real `frazil serve` with security: `curl` with a key, rights that change while it runs, and SQL of two callers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.flight
import pytest

from frazil.node.access.local_token import read_local_token
from parts.danube import Server
from parts.processes import pause

pytestmark = pytest.mark.timeout(180)

EFFECTIVE_S_MAX = 1.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("secured"), others={"security": {"enabled": True}})
    server.start()
    try:
        yield server
        assert "Traceback" not in server.log()
    finally:
        server.kill()


@pytest.fixture(scope="module")
def admin(server: Server) -> Iterator[httpx.Client]:
    """By the local token, as the command line has it."""
    token = read_local_token(server.folder / "data")
    with httpx.Client(base_url=server.http, headers={"authorization": f"Bearer {token}"}, timeout=30) as client:
        for topic in ("/shop/orders", "/bank/secret"):
            assert client.post("/v1/topics", json={"topic": topic}).status_code == 201
        yield client


def new_key(admin: httpx.Client, role: str | None, scope: str = "*") -> dict[str, Any]:
    made = admin.post("/v1/keys", json={"owner": "a test"})
    assert made.status_code == 201, made.text
    found: dict[str, Any] = made.json()
    if role is not None:
        body = {"principal": found["principal"], "role": role, "scope": scope}
        assert admin.post("/v1/bindings", json=body).status_code == 201
    return found


def curl(server: Server, path: str, key: str | None, *words: str) -> tuple[int, dict[str, Any], str]:
    """The status, the answer and the headers."""
    header = [] if key is None else ["-H", f"Authorization: Bearer {key}"]
    command = ["curl", "-s", "-D", "-", "-o", "-", "-w", "\n%{http_code}", *header, *words, server.http + path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    rest, _, status = done.stdout.rpartition("\n")
    headers, _, body = rest.replace("\r\n", "\n").partition("\n\n")
    return int(status), json.loads(body), headers.lower()


def test_curl_with_a_key_gets_what_its_role_allows(server: Server, admin: httpx.Client) -> None:
    key = new_key(admin, "reader", "/shop/*")["key"]
    status, told, headers = curl(server, "/v1/topics", None)
    assert (status, told["error"]) == (401, "unauthenticated")
    assert "www-authenticate: bearer" in headers
    assert "x-content-type-options: nosniff" in headers
    status, told, _ = curl(server, "/v1/topics", key)
    assert (status, [one["topic"] for one in told["items"]]) == (200, ["/shop/orders"])
    assert curl(server, "/v1/topics/shop/orders", key)[0] == 200
    hidden, absent = (curl(server, f"/v1/topics/bank/{name}", key) for name in ("secret", "nothing"))
    assert (hidden[0], absent[0]) == (403, 403)
    assert hidden[1]["message"].replace("secret", "nothing") == absent[1]["message"]
    assert curl(server, "/v1/topics/shop/orders", key, "-X", "DELETE")[0] == 403
    assert curl(server, "/v1/topics/shop/orders", key + "a")[0] == 401
    assert curl(server, "/health/ready", None)[1].keys() == {"status"}
    assert admin.get("/v1/topics/shop/orders").status_code == 200


def test_a_removed_binding_and_a_revoked_key_are_refused_within_a_second(server: Server, admin: httpx.Client) -> None:
    made = new_key(admin, "reader", "/shop/*")
    assert curl(server, "/v1/topics/shop/orders", made["key"])[0] == 200
    gone = admin.delete("/v1/bindings", params={"principal": made["principal"], "role": "reader", "scope": "/shop/*"})
    assert gone.status_code == 200, gone.text
    pause(EFFECTIVE_S_MAX)
    assert curl(server, "/v1/topics/shop/orders", made["key"])[0] == 403
    assert curl(server, "/v1/whoami", made["key"])[0] == 200
    assert admin.delete(f"/v1/keys/{made['id']}").status_code == 200
    pause(EFFECTIVE_S_MAX)
    assert curl(server, "/v1/whoami", made["key"])[0] == 401


def test_sql_of_each_caller_sees_its_own_topics_and_the_audit_log_has_the_hidden(
    server: Server, admin: httpx.Client
) -> None:
    shop, bank = (new_key(admin, "reader", f"/{name}/*") for name in ("shop", "bank"))
    with pyarrow.flight.connect(server.flight) as client:

        def ask(made: dict[str, Any], table: str) -> list[dict[str, Any]]:
            headers = [(b"authorization", f"Bearer {made['key']}".encode())]
            options = pa.flight.FlightCallOptions(headers=headers, timeout=60)
            ticket = pa.flight.Ticket(json.dumps({"sql": {"query": f"select count(*) as n from {table}"}}).encode())
            rows: list[dict[str, Any]] = client.do_get(ticket, options).read_all().to_pylist()
            return rows

        assert ask(shop, "shop.orders") == [{"n": 0}]
        assert ask(bank, "bank.secret") == [{"n": 0}]
        told = []
        for name in ("bank.secret", "shop.absent", "bank.absent", '"bank"."secret-part-0"'):
            with pytest.raises(pa.ArrowException) as refused:
                ask(shop, name)
            told.append(str(refused.value))
    assert "there is no topic or table bank.secret" in told[0]
    assert "permission" not in told[0].lower()

    def audited() -> list[tuple[str, str, str, bool]]:
        audit = (server.folder / "data" / "audit.log").read_text()
        own = [one for one in map(json.loads, audit.splitlines()) if one["principal"] == shop["principal"]]
        return [(one["call"], one["action"], one["resource"], one["allowed"]) for one in own]

    pause(1)  # the log is written within a second
    names = "/bank/secret", "/bank/absent", "/bank/secret"
    assert audited() == [("DoGet", "read", f"table {name}", False) for name in names]


def test_no_key_is_in_the_log_or_in_the_folder(server: Server, admin: httpx.Client) -> None:
    key = new_key(admin, "reader")["key"]
    curl(server, "/v1/topics", key)
    curl(server, "/v1/topics/bank/secret", key, "-X", "DELETE")
    secret = key.rpartition("_")[2]
    assert secret not in server.log()
    for path in (server.folder / "data").rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path


@pytest.mark.parametrize("size", [17 * 1024, 1_000_000])
def test_a_huge_token_is_refused_over_http_and_flight(server: Server, admin: httpx.Client, size: int) -> None:
    """By the protocol's own limit of headers, or by the gate. The server goes on."""
    token = "x" * size
    try:
        refused = httpx.get(f"{server.http}/v1/topics", headers={"authorization": f"Bearer {token}"}, timeout=30)
    except httpx.HTTPError:  # the connection is closed before all of it was sent
        pass
    else:
        assert refused.status_code in (400, 401, 431), refused.text
    options = pyarrow.flight.FlightCallOptions(timeout=30, headers=[(b"authorization", f"Bearer {token}".encode())])
    with (
        pyarrow.flight.connect(server.flight) as client,
        pytest.raises((pyarrow.flight.FlightUnauthenticatedError, pyarrow.flight.FlightServerError, pa.ArrowException)),
    ):
        list(client.list_flights(options=options))
    assert admin.get("/v1/topics").status_code == 200
