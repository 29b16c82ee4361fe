"""Headers against misuse by browsers are on every answer; other origins may call only if the settings name them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

import frazil
from frazil.core.settings import make_settings
from frazil.doors.http.access import needs
from frazil.doors.http.door import make_app
from frazil.node.node import Node

ORIGIN = "https://admin.example:8443"


def call(tmp_path: Path, method: str, path: str, *, scheme: str = "http", http: Any = None, **headers: str) -> Any:
    async def asked() -> httpx.Response:
        with frazil.open(make_settings({"data": tmp_path / "data", "http": http or {}})) as storage:
            app = make_app(Node(storage))

            @app.get("/v1/broken", dependencies=[needs()])
            def broken() -> None:
                raise ValueError("a bug")

            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=f"{scheme}://127.0.0.1:6680") as client:
                body = {"topic": "/shop/made"} if method == "POST" else None
                return await client.request(method, path, json=body, headers=headers)

    return asyncio.run(asked())


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/topics", {}, 200),
        ("/v1/topics/shop/nothing", {}, 404),
        ("/v1/topics?limit=x", {}, 400),
        ("/v1/broken", {}, 500),
        ("/nothing", {}, 404),
        ("/metrics", {}, 200),
        ("/health/live", {}, 200),
        ("/openapi.json", {}, 200),
        ("/v1/topics", {"Host": "page.invalid"}, 421),
    ],
)
def test_every_answer_has_them_once(tmp_path: Path, path: str, headers: dict[str, str], status: int) -> None:
    answer = call(tmp_path, "GET", path, **headers)
    assert answer.status_code == status
    assert answer.headers.get_list("x-content-type-options") == ["nosniff"]
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert answer.headers.get("cache-control") == ("no-store" if path.startswith("/v1") else None)
    assert "strict-transport-security" not in answer.headers
    assert "html" not in answer.headers["content-type"]


def test_with_tls_browsers_are_told_to_keep_to_it(tmp_path: Path) -> None:
    assert (
        call(tmp_path, "GET", "/v1/topics", scheme="https").headers["strict-transport-security"].startswith("max-age")
    )


def _allowing(answer: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}


def test_without_the_setting_no_origin_may_call(tmp_path: Path) -> None:
    asks = {"Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "authorization"}
    for method, headers in (("GET", {}), ("OPTIONS", asks)):
        assert not _allowing(call(tmp_path, method, "/v1/topics", Origin=ORIGIN, **headers))


def test_the_origins_of_the_setting_may_call_and_no_others(tmp_path: Path) -> None:
    http = {"cors_origins": [ORIGIN]}
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    allowed = call(tmp_path, "OPTIONS", "/v1/topics", http=http, Origin=ORIGIN, **asks)
    assert allowed.status_code == 200
    assert _allowing(allowed)["access-control-allow-origin"] == ORIGIN
    answer = call(tmp_path, "POST", "/v1/topics", http=http, Origin=ORIGIN)
    assert (answer.status_code, _allowing(answer)["access-control-allow-origin"]) == (201, ORIGIN)
    assert "access-control-allow-credentials" not in {**_allowing(allowed), **_allowing(answer)}
    for other in ("https://admin.example", "http://admin.example:8443", "https://x.admin.example:8443", "null"):
        refused = call(tmp_path, "OPTIONS", "/v1/topics", http=http, Origin=other, **asks)
        assert "access-control-allow-origin" not in _allowing(refused)
        assert call(tmp_path, "POST", "/v1/topics", http=http, Origin=other).status_code == 403


@pytest.mark.parametrize("origin", ["*", "admin.example", "https://admin.example/", "https://*.example", "null", ""])
def test_an_origin_is_exact(tmp_path: Path, origin: str) -> None:
    with pytest.raises(frazil.InvalidSettings, match="cors_origins"):
        make_settings({"data": tmp_path, "http": {"cors_origins": [origin]}})
