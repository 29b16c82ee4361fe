"""Calls of the admin door that block, and what they answer."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest

from frazil.cli.main import main
from parts.danube import Server


class Http:
    """Blocks, also in coroutines: clients and the server have their own threads and processes."""

    def __init__(self, address: str) -> None:
        self._client = httpx.Client(base_url=address, timeout=30)

    def __getattr__(self, method: str) -> Callable[..., httpx.Response]:
        return functools.partial(self._client.request, method.upper())

    def close(self) -> None:
        self._client.close()


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 120))


def verb(capsys: pytest.CaptureFixture[str], server: Server, *words: str) -> Any:
    """What the command line says of the same folder, beside the server."""
    assert main([*words, "--json", "--data", str(server.folder / "data")]) == 0
    return json.loads(capsys.readouterr().out)


def ok(answer: httpx.Response, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    told: dict[str, Any] = answer.json()
    assert (answer.status_code, told["error"]) == (status, code), answer.text
    assert told["message"]
    return told
