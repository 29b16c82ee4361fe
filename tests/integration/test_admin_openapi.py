"""Schemathesis against the admin door of a real `frazil serve`: whatever is sent, the answer is what OpenAPI says."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from parts.danube import TOPIC, Server, connect, producer, serving, subscriber
from parts.movers import environment

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
)
"""All but one: that everything which fits the document is accepted. Whether a text is an Avro schema, for one, no
document says."""
KNOWN = """
[[operations]]
include-method = ["GET", "PUT", "POST"]
[operations.parameters]
"path.namespace" = "default"
"path.topic" = "orders"
"path.subscription" = "s"
"path.tenant" = "acme"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With something of each kind, so that routes have more to say than that it is not there."""
    with serving(
        tmp_path_factory.mktemp("openapi"),
        others={"telemetry": {"enabled": True}},
        redeliveries_max=0,
        poison="dead_letter",
    ) as found:
        asyncio.run(_fill(found))
        made = httpx.post(
            f"{found.http}/v1/schemas/tea/versions", json={"schema_type": "string", "definition": "string"}, timeout=30
        )
        assert made.status_code == 201, made.text
        assert httpx.post(f"{found.http}/v1/tenants", json={"tenant": "acme"}, timeout=30).status_code == 201
        yield found
        assert "Traceback" not in found.log()


async def _fill(server: Server) -> None:
    client = await connect(server)
    sender = await producer(client)
    async with subscriber(client) as receiver:
        for number in range(6):
            await sender.send(str(number).encode())
        for message in await receiver.take(2, ack=False):
            await receiver.consumer.nack(message)


def fuzz(server: Server, folder: Path, *options: str) -> None:
    config = folder / "schemathesis.toml"
    config.write_text(KNOWN, encoding="utf-8")
    program = Path(sys.executable).parent / "schemathesis"
    done = subprocess.run(
        [
            program, "--config-file", config, "run", f"{server.http}/openapi.json", "--include-path-regex", "^/v1",
            "--checks", ",".join(CHECKS), "--warnings", "off", "--no-color", *options,
        ],
        cwd=folder, env=environment(), capture_output=True, text=True, timeout=3_000,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
    assert httpx.get(f"{server.http}/v1/topics{TOPIC}", timeout=30).status_code == 200


@pytest.mark.timeout(600)  # a hundred routes, a server and its jobs: two minutes were not enough on a busy machine
def test_the_document_says_what_the_door_does(server: Server, tmp_path: Path) -> None:
    """But two routes that start processes, as the one for proofs does, which is among them."""
    left_out = ("--exclude-operation-id", "start_maintenance", "--exclude-operation-id", "start_log_check")
    fuzz(server, tmp_path, "--max-examples", "2", "--phases", "coverage,fuzzing", *left_out)


@pytest.mark.long
@pytest.mark.timeout(3_000)
def test_the_document_says_what_the_door_does_at_length(server: Server, tmp_path: Path) -> None:
    fuzz(server, tmp_path, "--max-examples", "200", "--phases", "examples,coverage,fuzzing,stateful")
