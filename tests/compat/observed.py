"""What can be observed of a data folder, as JSON: recorded by the version that made it, compared by every later one.

Public faces are used (`frazil.open`, `frazil.connect`, the command line, HTTP), so that one file serves all
versions.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

import frazil
from frazil.cli.main import main

DEADLINE_SECONDS = 60
LONG_BYTES = 64
SUBSCRIPTION_FIELDS = ("topic", "subscription", "type", "reliable", "cursor", "end", "lag", "consumers")
TOPIC_FIELDS = ("log_id", "typed", "first_offset", "end", "created_us", "schema", "retention", "reliable", "producers")
LETTER_FIELDS = ("original_topic", "original_subscription", "original_offset", "redeliveries", "reason", "text")


def sections(folder: Path) -> dict[str, Any]:
    """The settings of a fixture in `folder`: its data and its lake are siblings."""
    return {
        "data": str(folder / "data"),
        "catalog": {"uri": f"sqlite:///{folder}/lake/catalog.db"},
        "object_store": {"path": str(folder / "lake" / "warehouse")},
        "wal": {"max_file_size": 64 * 1024, "cache_bytes": 0},
    }


def config_file(folder: Path) -> Path:
    """The settings as a file, for processes of their own."""
    path = folder / "frazil.yaml"
    path.write_text(json.dumps(sections(folder)), encoding="utf-8")
    return path


def command(folder: Path, *arguments: str) -> dict[str, Any]:
    """The JSON that a verb prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = main([*arguments, "--config", str(config_file(folder)), "--json"])
    assert code == 0, f"{arguments}: {printed.getvalue()}"
    answer: dict[str, Any] = json.loads(printed.getvalue())
    return answer


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[dict[str, str]]:
    """The folder behind `frazil serve` without a mover; the addresses of its doors."""
    ports = ("--port", "0", "--flight-port", "0", "--broker-port", "0", "--admin-port", "0")
    words = [sys.executable, "-m", "frazil", "serve", *ports, "--no-pipeline", "--config", str(config_file(folder))]
    log = folder / "serve.log"
    with log.open("wb") as errors:
        server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=errors)
    told, pause, give_up = folder / "data" / "~serve", threading.Event(), time.monotonic() + DEADLINE_SECONDS
    try:
        doors: dict[str, Any] = {}
        while doors.get("pid") != server.pid:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < give_up, log.read_text()
            pause.wait(0.05)
            with contextlib.suppress(OSError, ValueError):
                doors = json.loads(told.read_text())
        yield doors
        server.send_signal(signal.SIGTERM)
        assert server.wait(DEADLINE_SECONDS) == 0, log.read_text()
    finally:
        if server.poll() is None:
            os.kill(server.pid, signal.SIGKILL)
            server.wait()


def rows_of(storage: frazil.Storage | frazil.ReadOnlyStorage) -> dict[str, list[dict[str, Any]]]:
    """Every row of every topic, by topic."""
    return {name: topic_rows(storage.topic(name)) for name in storage.topics()}


def topic_rows(topic: Any, start: int | str = "earliest") -> list[dict[str, Any]]:
    found = [row for batch in topic.read_batches(start) for row in batch.to_pylist()]
    return [{name: plain(value) for name, value in row.items()} for row in found]


def plain(value: object) -> Any:
    """A value as JSON has it. Of long bytes the hash: what matters is that they are the same."""
    if isinstance(value, bytes):
        if len(value) > LONG_BYTES:
            return f"{len(value)} bytes, sha256 {hashlib.sha256(value).hexdigest()}"
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return {key: plain(one) for key, one in value.items()} if isinstance(value, Mapping) else value


def served_state(address: str) -> dict[str, Any]:
    """What a server knows beside the rows: topics, subscriptions, schemas, namespaces."""
    with httpx.Client(base_url=address, timeout=30) as http:
        topics = _items(http, "/v1/topics")
        names = [one["topic"] for one in topics]
        with_log = [one["topic"] for one in topics if one["reliable"]]
        return {
            "namespaces": _items(http, "/v1/namespaces"),
            "topics": {one["topic"]: _picked(one, TOPIC_FIELDS) for one in topics},
            "retention": {name: _get(http, f"/v1/topics{name}/retention") for name in with_log},
            "bound": {name: _get(http, f"/v1/topics{name}/schema") for name in names},
            "subscriptions": [
                _picked(one, SUBSCRIPTION_FIELDS)
                | {"policy": _policy(http, name, one["subscription"]), "in_table": one["file"] is not None}
                for name in names
                for one in _users(http, f"/v1/topics{name}/subscriptions")
            ],
            "producers": [one for name in names for one in _users(http, f"/v1/topics{name}/producers")],
            "schemas": {one["subject"]: _versions(http, one["subject"]) for one in _items(http, "/v1/schemas")},
            "dead_letters": _letters(http, names),
        }


def _get(http: httpx.Client, path: str) -> Any:
    answer = http.get(path)
    answer.raise_for_status()
    return answer.json()


def _items(http: httpx.Client, path: str) -> list[Any]:
    found: list[Any] = _get(http, path)["items"]
    return found


def _users(http: httpx.Client, path: str) -> list[Any]:
    """A topic that the broker has nothing of may be unknown to it, or have none."""
    return [] if http.get(path).status_code == httpx.codes.NOT_FOUND else _items(http, path)


def _policy(http: httpx.Client, topic: str, subscription: str) -> Any:
    return _get(http, f"/v1/topics{topic}/subscriptions/{subscription}/policy")["policy"]


def _versions(http: httpx.Client, subject: str) -> list[Any]:
    numbers = [one["version"] for one in _items(http, f"/v1/schemas/{subject}/versions")]
    return [_get(http, f"/v1/schemas/{subject}/versions/{number}") for number in numbers]


def _letters(http: httpx.Client, topics: list[str]) -> list[Any]:
    letters = []
    for name in topics:
        if f"{name}-dead-letter" in topics:
            letters += _items(http, f"/v1/topics{name}/dead-letters")
    return [_picked(one, LETTER_FIELDS) for one in letters]


def _picked(value: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value[name] for name in names}
