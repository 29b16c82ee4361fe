"""The admin door answers to its own names, and changes nothing for pages of other sites."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

import frazil
from frazil.core.settings import make_settings
from frazil.doors.http.door import make_app
from frazil.node.node import Node

OWN = ["127.0.0.1:6680", "localhost:6680", "LOCALHOST", "[::1]:6680", "10.1.2.3", socket.gethostname(), "app.localhost"]
FOREIGN = ["page.invalid:6680", "localhost.page.invalid", "127.0.0.1.page.invalid", "a@localhost", "", "localhost:x"]


@pytest.fixture
def app(tmp_path: Path) -> Iterator[FastAPI]:
    settings = make_settings({"data": tmp_path / "data", "http": {"allowed_hosts": ["logs.example"]}})
    with frazil.open(settings) as storage:
        yield make_app(Node(storage))


def call(app: FastAPI, method: str, path: str, **headers: str) -> httpx.Response:
    async def asked() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:6680") as client:
            body = {"topic": "/shop/made"} if method == "POST" else None
            return await client.request(method, path, json=body, headers=headers)

    return asyncio.run(asked())


@pytest.mark.parametrize("host", [*OWN, "logs.example", "logs.example.:6680"])
def test_its_own_names_are_answered(app: FastAPI, host: str) -> None:
    assert call(app, "GET", "/v1/topics", Host=host).status_code == 200
    assert call(app, "POST", "/v1/topics", Host=host, Origin=f"http://{host}").status_code == 201


def test_a_request_with_two_lengths_is_refused_and_ends_its_connection(app: FastAPI) -> None:
    headers = {"transfer-encoding": "chunked", "content-length": "6"}
    answer = call(app, "POST", "/v1/topics", **headers)
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_input")
    assert answer.headers["connection"] == "close"
    assert call(app, "GET", "/v1/topics").json()["items"] == []


@pytest.mark.parametrize("host", FOREIGN)
@pytest.mark.parametrize("path", ["/v1/topics", "/health/live", "/metrics", "/nothing"])
def test_another_name_is_misdirected(app: FastAPI, host: str, path: str) -> None:
    answer = call(app, "GET", path, Host=host)
    assert answer.status_code == 421
    assert answer.json()["error"] == "host_refused"
    assert "http.allowed_hosts" in answer.json()["message"]


@pytest.mark.parametrize(
    "origin", ["http://page.invalid", "null", "http://127.0.0.1:3000", "https://logs.example.evil"]
)
def test_a_page_of_another_site_changes_nothing(app: FastAPI, origin: str) -> None:
    answer = call(app, "POST", "/v1/topics", Origin=origin)
    assert answer.status_code == 403
    assert answer.json()["error"] == "origin_refused"
    assert call(app, "DELETE", "/v1/topics/shop/made?force=true", Origin=origin).status_code == 403
    assert "made" not in call(app, "GET", "/v1/topics").text


def test_a_page_of_an_allowed_name_may_change_things(app: FastAPI) -> None:
    assert call(app, "POST", "/v1/topics", Origin="https://logs.example").status_code == 201


def test_any_name_can_be_allowed(tmp_path: Path) -> None:
    settings = make_settings({"data": tmp_path / "data", "http": {"allowed_hosts": ["*"]}})
    with frazil.open(settings) as storage:
        app = make_app(Node(storage))
        assert call(app, "GET", "/v1/topics", Host="page.invalid").status_code == 200
        assert call(app, "POST", "/v1/topics", Origin="http://page.invalid").status_code == 403


@pytest.mark.parametrize("name", ["http://x", "x:1", ""])
def test_an_allowed_name_has_no_scheme_and_no_port(tmp_path: Path, name: str) -> None:
    with pytest.raises(frazil.InvalidSettings, match="without scheme and port"):
        make_settings({"data": tmp_path, "http": {"allowed_hosts": [name]}})
