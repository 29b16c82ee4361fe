"""A real `frazil serve` with tenants, and stock Flight clients of theirs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Self

import httpx
import pyarrow as pa
import pyarrow.flight

from frazil.node.access.local_token import read_local_token
from parts.danube import Server
from parts.movers import environment

SECTIONS: dict[str, Any] = {"security": {"enabled": True}, "telemetry": {"enabled": True}}


class Secured(Server):
    """A served folder with security and telemetry, and the verbs on it."""

    def verb(self, *words: str, code: int = 0, key: str | None = None) -> Any:
        where = ["--data", str(self.folder / "data")] if key is None else ["--server", self.http]
        command = [sys.executable, "-m", "frazil", *words, *where, "--config", str(self._config), "--json"]
        told = {} if key is None else {"FRAZIL_CLIENT__TOKEN": key}
        done = subprocess.run(command, capture_output=True, text=True, env=environment() | told, timeout=100)
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stderr.splitlines()[-1] if code else done.stdout)

    def create(self, tenant: str, *options: str) -> str:
        found: str = self.verb("tenants", "create", tenant, *options)["key"]["key"]
        return found

    def as_admin(self, method: str, path: str, body: Any = None) -> Any:
        """A call of the HTTP door with the local token: a verb starts a process each time."""
        token = read_local_token(self.folder / "data")
        headers = {"authorization": f"Bearer {token}"}
        done = httpx.request(method, self.http + path, json=body, headers=headers, timeout=60)
        assert done.is_success, done.text
        return done.json()

    def tenant(self, name: str, **limits: int) -> str:
        """The key of a new tenant."""
        made = self.as_admin("POST", "/v1/tenants", {"tenant": name, **limits})
        return str(made["key"]["key"])

    def get(self, path: str, key: str) -> httpx.Response:
        return httpx.get(self.http + path, headers={"authorization": f"Bearer {key}"}, timeout=30)


class FlightTenant:
    """A stock Flight client with a key, and headers of its own."""

    def __init__(self, address: str, key: str | None = None, **headers: str) -> None:
        self.client = pa.flight.connect(address)
        given = {} if key is None else {"authorization": f"Bearer {key}"}
        given |= {f"x-frazil-{name}": value for name, value in headers.items()}
        pairs = [(name.encode(), value.encode()) for name, value in given.items()]
        self.options = pa.flight.FlightCallOptions(headers=pairs, timeout=60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def put(self, path: tuple[str, ...], *batches: pa.RecordBatch, schema: pa.Schema | None = None) -> list[Any]:
        """The answers to the batches, once all are durable; raises the error of the first that is refused."""
        descriptor = pa.flight.FlightDescriptor.for_path(*path)
        writer, answers = self.client.do_put(descriptor, schema or batches[0].schema, self.options)
        found = []
        for batch in batches:
            writer.write_batch(batch)
        writer.done_writing()
        while (told := answers.read()) is not None:
            found.append(json.loads(told.to_pybytes()))
        writer.close()
        return found

    def info(self, *path: str) -> pa.flight.FlightInfo:
        return self.client.get_flight_info(pa.flight.FlightDescriptor.for_path(*path), self.options)

    def schema(self, *path: str) -> pa.Schema:
        descriptor = pa.flight.FlightDescriptor.for_path(*path)
        return self.client.get_schema(descriptor, self.options).schema

    def rows(self, *path: str) -> list[dict[str, Any]]:
        """All rows of a table, without the columns of Frazil."""
        (endpoint,) = self.info(*path).endpoints
        return plain(self.client.do_get(endpoint.ticket, self.options).read_all())

    def read(self, **wanted: Any) -> list[dict[str, Any]]:
        """A part of a table, by a command."""
        command = json.dumps({"read": wanted}).encode()
        descriptor = pa.flight.FlightDescriptor.for_command(command)
        (endpoint,) = self.client.get_flight_info(descriptor, self.options).endpoints
        return plain(self.client.do_get(endpoint.ticket, self.options).read_all())

    def flights(self, prefix: str = "") -> list[list[str]]:
        found = self.client.list_flights(prefix.encode(), self.options)
        return [[part.decode() for part in one.descriptor.path] for one in found]

    def act(self, name: str, **body: Any) -> Any:
        action = pa.flight.Action(name, json.dumps(body).encode())
        (answer,) = self.client.do_action(action, self.options)
        return json.loads(answer.body.to_pybytes())


def plain(table: pa.Table) -> list[dict[str, Any]]:
    return list(table.drop_columns(["_offset", "_append_time"]).to_pylist())


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)
