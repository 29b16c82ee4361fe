"""A real `frazil serve` and the stock Danube client for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from danube.client import DanubeClient, DanubeClientBuilder
from danube.consumer import Consumer, ConsumerOptions, SubType
from danube.dispatch_strategy import DispatchStrategy
from danube.producer import Producer, ProducerOptions
from danube.proto import DanubeApi_pb2 as pb

from parts.movers import environment
from parts.processes import free_port

TOPIC = "/default/orders"
WAIT_SECONDS = 30
PATIENT = {"max_retries": 100, "base_backoff_ms": 50, "max_backoff_ms": 200}


class Server:
    """One that can be killed and started again at the same address, on the same folder."""

    moves = False
    """Whether it has a mover."""

    def __init__(
        self, folder: Path, metadata: dict[str, Any] | None = None, others: dict[str, Any] | None = None, **broker: Any
    ) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        folder.mkdir(parents=True, exist_ok=True)
        self.flight_port = free_port()
        self.flight = f"grpc://127.0.0.1:{self.flight_port}"
        flight = {"port": self.flight_port}
        sections = {"broker": {"port": self.port, "admin_port": 0, **broker}, "http": {"port": 0}, "flight": flight}
        sections |= {} if metadata is None else {"metadata": metadata}
        sections |= others or {}
        self._config = folder / "frazil.yaml"
        self._config.write_text(json.dumps(sections), encoding="utf-8")
        self._log = folder / "server.log"
        self.process: subprocess.Popen[str] | None = None
        self.http = self.admin = ""
        self.flight = ""

    def start(self) -> dict[str, Any]:
        command = [sys.executable, "-m", "frazil", "serve", "--json", *([] if self.moves else ["--no-pipeline"])]
        command += ["--data", str(self.folder / "data"), "--config", str(self._config)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment(), start_new_session=True
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log()
        found: dict[str, Any] = json.loads(line)
        self.http, self.flight, self.admin = found["address"], found["flight"], found.get("admin", "")
        return found

    def kill(self) -> None:
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        self._gone()

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self._gone()

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def _gone(self) -> int:
        assert self.process is not None
        code = self.process.wait(30)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code


@contextlib.contextmanager
def serving(folder: Path, **broker: Any) -> Iterator[Server]:
    server = Server(folder, **broker)
    server.start()
    try:
        yield server
    finally:
        server.kill()


async def connect(server: Server) -> DanubeClient:
    return await DanubeClientBuilder().service_url(server.url).build()


async def producer(
    client: DanubeClient, topic: str = TOPIC, name: str = "p", *, reliable: bool = True, partitions: int = 0
) -> Producer:
    how = DispatchStrategy.RELIABLE if reliable else DispatchStrategy.NON_RELIABLE
    builder = client.new_producer().with_topic(topic).with_name(name).with_dispatch_strategy(how)
    made = builder.with_partitions(partitions).with_options(ProducerOptions(**PATIENT)).build()
    await made.create()
    return made


class Subscriber:
    """A stock consumer, and what it received."""

    def __init__(self, consumer: Consumer, queue: asyncio.Queue[pb.StreamMessage]) -> None:
        self.consumer = consumer
        self._queue = queue

    async def take(self, count: int, *, ack: bool = True) -> list[pb.StreamMessage]:
        found = []
        for _ in range(count):
            message = await asyncio.wait_for(self._queue.get(), WAIT_SECONDS)
            found.append(message)
            if ack:
                await self.consumer.ack(message)
        return found

    async def texts(self, count: int) -> list[str]:
        return [message.payload.decode() for message in await self.take(count)]

    def waiting(self) -> int:
        return self._queue.qsize()


@contextlib.asynccontextmanager
async def subscriber(
    client: DanubeClient,
    name: str = "c",
    kind: SubType = SubType.EXCLUSIVE,
    *,
    topic: str = TOPIC,
    subscription: str = "s",
    filters: tuple[str, ...] = (),
) -> AsyncIterator[Subscriber]:
    builder = client.new_consumer().with_topic(topic).with_consumer_name(name).with_subscription(subscription)
    builder = builder.with_subscription_type(kind).with_key_filters(list(filters))
    made = builder.with_options(ConsumerOptions(**PATIENT)).build()
    await made.subscribe()
    try:
        yield Subscriber(made, await made.receive())
    finally:
        await made.close()
