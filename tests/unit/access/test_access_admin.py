"""Keys, roles and bindings through the Node, its HTTP door and the command line."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import frazil
from frazil.cli.main import main
from frazil.core import access
from frazil.core.access import SERVER, Action
from frazil.core.principal import LOCAL, Principal
from frazil.core.settings import make_settings
from frazil.doors.http.door import make_app
from frazil.node.access.guard import SecureGate
from frazil.node.access.local_token import TOKEN_FILE, read_local_token
from frazil.node.node import Node, open_node

RULE = {"effect": "deny", "actions": ["produce"], "kind": "topic", "pattern": "/shop/secret*"}


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[Node, httpx.AsyncClient]]:
    """A Node without a broker, with security on, and a client of its HTTP door that is local."""
    settings = make_settings({"data": folder, "security": {"enabled": True}})
    with open_node(settings) as node:
        await node.start()
        try:
            token = read_local_token(folder)
            transport = httpx.ASGITransport(make_app(node))
            headers = {"authorization": f"Bearer {token}"}
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
                yield node, client
        finally:
            await node.stop()


async def made(client: httpx.AsyncClient, role: str | None = None, **values: Any) -> dict[str, Any]:
    answer = await client.post("/v1/keys", json={"owner": "alice", **values})
    assert answer.status_code == 201, answer.text
    key: dict[str, Any] = answer.json()
    if role is not None:
        bound = await client.post("/v1/bindings", json={"principal": key["principal"], "role": role})
        assert bound.status_code == 201, bound.text
    return key


def bearer(key: dict[str, Any]) -> dict[str, str]:
    return {"authorization": f"Bearer {key['key']}"}


def test_the_gate_is_open_while_the_node_is_started(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(tmp_path) as (node, _):
            assert isinstance(node.gate, SecureGate)
            assert (tmp_path / TOKEN_FILE).exists()
            node.keys(LOCAL).create("alice")
            with pytest.raises(frazil.PermissionDenied):
                node.keys(Principal("jwt:alice"))
        assert not (tmp_path / TOKEN_FILE).exists()

    asyncio.run(run())


def test_without_security_there_is_no_token_and_a_clear_error(tmp_path: Path) -> None:
    async def run() -> None:
        with open_node(make_settings({"data": tmp_path})) as node:
            await node.start()
            transport = httpx.ASGITransport(make_app(node))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                for path in ("/v1/keys", "/v1/roles", "/v1/roles/admin", "/v1/bindings", "/v1/whoami"):
                    answer = await client.get(path)
                    assert answer.status_code == 409
                    assert answer.json()["error"] == "security_off"
                    assert "security.enabled" in answer.json()["message"]
            await node.stop()
        assert not (tmp_path / TOKEN_FILE).exists()

    asyncio.run(run())


def test_the_life_of_a_key_over_http(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(tmp_path) as (_, client):
            key = await made(client, "reader", description="for tests", lifetime_ms=60_000)
            me = await client.get("/v1/whoami", headers=bearer(key))
            assert me.json() == {
                "principal": f"key:{key['id']}",
                "token_roles": [],
                "bindings": [{"principal": f"key:{key['id']}", "role": "reader", "scope": "*"}],
                "expires_us": key["expires_us"],
            }
            assert (await client.get("/v1/keys", headers=bearer(key))).status_code == 403
            listed = await client.get("/v1/keys")
            assert key["key"] not in listed.text
            assert [one["id"] for one in listed.json()["items"]] == [key["id"]]
            rotated = (await client.post(f"/v1/keys/{key['id']}/rotate", json={"overlap_ms": 60_000})).json()
            assert rotated["old_secret_until_us"] > rotated["rotated_us"] > key["created_us"]
            for one in (key, rotated):
                assert (await client.get("/v1/whoami", headers=bearer(one))).status_code == 200
            again = (await client.post(f"/v1/keys/{key['id']}/rotate", json={})).json()
            assert (await client.get("/v1/whoami", headers=bearer(key))).status_code == 401
            assert (await client.get("/v1/whoami", headers=bearer(rotated))).status_code == 401
            assert (await client.delete(f"/v1/keys/{key['id']}")).json() == {"id": key["id"], "revoked": True}
            assert (await client.get("/v1/whoami", headers=bearer(again))).status_code == 401
            assert (await client.delete(f"/v1/keys/{key['id']}")).status_code == 404

    asyncio.run(run())


def test_roles_and_bindings_over_http(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(tmp_path) as (node, client):
            who = Principal("jwt:alice")
            assert (await client.put("/v1/roles/mine", json={"rules": [RULE]})).json() == {
                "name": "mine",
                "built_in": False,
                "rules": [RULE],
            }
            names = [one["name"] for one in (await client.get("/v1/roles")).json()["items"]]
            assert names == ["admin", "consumer", "mine", "operator", "producer", "reader", "tenant"]
            for role in ("admin", "mine"):
                body = {"principal": "jwt:alice", "role": role}
                assert (await client.post("/v1/bindings", json=body)).status_code == 201
            assert node.gate.allows(who, Action.GRANT, SERVER)
            page = (await client.get("/v1/bindings", params={"limit": 1})).json()
            rest = (await client.get("/v1/bindings", params={"after": page["next"]})).json()
            assert [one["role"] for one in (*page["items"], *rest["items"])] == ["admin", "mine"]
            assert (await client.delete("/v1/roles/mine")).status_code == 400
            for role in ("admin", "mine"):
                gone = await client.delete("/v1/bindings", params={"principal": "jwt:alice", "role": role})
                assert gone.json()["deleted"] is True
            assert not node.gate.allows(who, Action.GRANT, SERVER)
            assert (await client.delete("/v1/roles/mine", params={"force": True})).status_code == 200
            assert (await client.get("/v1/roles/mine")).status_code == 404
            missing = await client.delete("/v1/bindings", params={"principal": "jwt:alice", "role": "admin"})
            assert missing.json()["error"] == "grant_not_found"

    asyncio.run(run())


def test_a_role_that_only_tokens_name_keeps_its_denial_until_its_deletion_is_forced(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(tmp_path) as (node, client):
            carol, hidden = Principal("jwt:carol", ("producer", "quiet")), access.topic("/shop/secret")
            assert (await client.put("/v1/roles/quiet", json={"rules": [RULE]})).status_code == 200
            assert not node.gate.allows(carol, Action.PRODUCE, hidden)
            refused = await client.delete("/v1/roles/quiet")
            assert refused.status_code == 400
            assert (refused.json()["field"], refused.json()["denials"]) == ("name", 1)
            assert "tokens may name it" in refused.json()["message"]
            assert not node.gate.allows(carol, Action.PRODUCE, hidden), "it is still denied"
            body = {"principal": "jwt:alice", "role": "quiet"}
            assert (await client.post("/v1/bindings", json=body)).status_code == 201
            bound = await client.delete("/v1/roles/quiet", params={"force": True})
            assert (bound.status_code, bound.json()["bindings"]) == (400, 1)
            assert (await client.delete("/v1/bindings", params=body)).status_code == 200
            assert (await client.delete("/v1/roles/quiet", params={"force": True})).status_code == 200
            assert node.gate.allows(carol, Action.PRODUCE, hidden), "an unknown role denies nothing"
            allowing = {"rules": [RULE | {"effect": "allow"}]}
            assert (await client.put("/v1/roles/loud", json=allowing)).status_code == 200
            assert (await client.delete("/v1/roles/loud")).status_code == 200

    asyncio.run(run())


def test_a_role_that_cannot_be_read_may_deny_something(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(tmp_path) as (node, client):
            directory = node.access_parts(LOCAL).gate.directory
            await asyncio.to_thread(directory.change, "/security/roles/mine", lambda _: b'{"rules": [{"later": 1}]}')
            assert (await client.delete("/v1/roles/mine")).json()["denials"] == 1
            assert (await client.delete("/v1/roles/mine", params={"force": True})).status_code == 200

    asyncio.run(run())


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("POST", "/v1/keys", {}, "owner"),
        ("POST", "/v1/keys", {"owner": ""}, "owner"),
        ("POST", "/v1/keys", {"owner": "a", "lifetime_ms": 0}, "lifetime_ms"),
        ("POST", "/v1/keys", {"owner": "a", "role": "admin"}, "role"),
        ("PUT", "/v1/roles/admin", {"rules": [RULE]}, "name"),
        ("PUT", "/v1/roles/Mine", {"rules": [RULE]}, "name"),
        ("PUT", "/v1/roles/mine", {"rules": []}, "rules"),
        ("PUT", "/v1/roles/mine", {"rules": [RULE | {"kind": "planet"}]}, "rules.kind"),
        ("POST", "/v1/bindings", {"principal": "alice", "role": "admin"}, "principal"),
        ("POST", "/v1/bindings", {"principal": "cert:a", "role": "admin", "scope": ""}, "scope"),
    ],
)
def test_a_wrong_call_names_the_field(tmp_path: Path, method: str, path: str, body: Any, field: str) -> None:
    async def run() -> None:
        async with served(tmp_path) as (_, client):
            answer = await client.request(method, path, json=body)
            assert answer.status_code == 400
            assert answer.json()["field"] == field

    asyncio.run(run())


def test_the_first_key_is_made_before_the_first_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "create", "alice", "--role", "admin", "--data", str(tmp_path), "--expires", "90d"]) == 0
    printed = capsys.readouterr()
    key = printed.out.strip()
    assert "only once" in printed.err
    assert key not in printed.err

    async def run() -> None:
        async with served(tmp_path) as (_, client):
            answer = await client.get("/v1/keys", headers={"authorization": f"Bearer {key}"})
            assert [one["owner"] for one in answer.json()["items"]] == ["alice"]

    asyncio.run(run())


def test_a_key_that_the_command_line_revokes_is_refused_within_a_second(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(tmp_path) as (_, client):
            key = await made(client, "admin")
            assert (await client.get("/v1/keys", headers=bearer(key))).status_code == 200
            verb = ["keys", "revoke", key["id"], "--yes", "--data", str(tmp_path)]
            assert await asyncio.to_thread(main, verb) == 0  # this process serves no door, so the verb uses the store
            ends = time.monotonic() + 1
            while (await client.get("/v1/keys", headers=bearer(key))).status_code == 200:
                assert time.monotonic() < ends

    asyncio.run(run())


def test_the_verbs_work_on_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*verb: str, code: int = 0) -> Any:
        assert main([*verb, "--data", str(tmp_path / "data"), "--json"]) == code
        printed = capsys.readouterr()
        return json.loads(printed.err if code else printed.out)

    file = tmp_path / "rules.json"
    file.write_text(json.dumps([RULE]))
    assert run("keys", "list") == []
    key = run("keys", "create", "alice", "--description", "d")
    assert run("keys", "rotate", key["id"], "--overlap", "1d")["old_secret_until_us"] is not None
    assert [one["id"] for one in run("keys", "list")] == [key["id"]]
    assert run("roles", "set", "mine", str(file))["rules"] == [RULE]
    assert run("roles", "show", "mine")["built_in"] is False
    assert len(run("roles", "list")) == 7
    run("bindings", "add", key["principal"], "mine", "--scope", "/shop/*")
    assert [one["scope"] for one in run("bindings", "list", "--principal", key["principal"])] == ["/shop/*"]
    assert run("bindings", "remove", key["principal"], "mine", code=3)["error"] == "grant_not_found"
    run("bindings", "remove", key["principal"], "mine", "--scope", "/shop/*")
    assert run("roles", "delete", "mine", code=2)["denials"] == 1
    assert run("roles", "delete", "mine", "--force")["deleted"] is True
    assert run("keys", "revoke", key["id"], "--yes")["revoked"] is True
    assert run("keys", "create", "alice", "--role", "nobody", code=3)["kind"] == "role"
    assert run("keys", "list") == [], "nothing was made"
    file.write_text("{")
    assert run("roles", "set", "mine", str(file), code=2)["field"] == "file"
