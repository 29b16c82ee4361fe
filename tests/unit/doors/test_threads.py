"""Work that hangs holds up its own threads alone."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from danube.proto import SchemaRegistry_pb2 as pb

from frazil.core.clock import SystemClock
from frazil.doors.danube.schemas import DanubeSchemas
from frazil.meta.sqlite import SqliteStore
from frazil.node.access.gate import OpenGate
from frazil.node.threads import Threads
from frazil.registry.registry import SchemaRegistry
from frazil.registry.topics import TopicSchemas

CALLS = 40
"""More than the threads that a loop has for everything."""


class HangingStore(SqliteStore):
    """A real store that does not answer for a while: one that hangs when it is told to can't be had otherwise."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.answers = threading.Event()

    def get(self, key: str):  # type: ignore[no-untyped-def]
        self.answers.wait(60)
        return super().get(key)


def test_a_store_that_hangs_leaves_other_work_its_threads(tmp_path: Path) -> None:
    async def work() -> None:
        store, threads = HangingStore(tmp_path / "meta.db"), Threads("schemas", 2)
        registry = SchemaRegistry(store, SystemClock())
        topics = TopicSchemas(store, registry, SystemClock())
        node: Any = SimpleNamespace(
            gate=OpenGate(), registry=lambda _: registry, schemas=lambda _: topics, schema_threads=lambda _: threads
        )
        schemas = DanubeSchemas(node)
        (latest,) = [method.handler for method in schemas.methods() if method.name == "GetLatestSchema"]
        calls = [asyncio.ensure_future(latest(pb.GetLatestSchemaRequest(subject="s"))) for _ in range(CALLS)]
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "done"), 10) == "done"
        assert not any(call.done() for call in calls)
        store.answers.set()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(answer).__name__ for answer in answers} == {"SchemaNotFound"}
        threads.close()
        store.close()

    asyncio.run(work())
