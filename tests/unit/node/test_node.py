"""The Node: a caller first in every call, and the same checks and traces whatever door a row comes by."""

from __future__ import annotations

import asyncio
import inspect
import sys
import typing
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import frazil
from frazil.broker.delivery.assignment import Kind
from frazil.broker.topics.topic import OutgoingMessage
from frazil.core.clock import SystemClock
from frazil.core.disk.json_file import read_json, write_json
from frazil.core.errors import BrokerOff, ClusterOff, InvalidInput, MessageRefused, NobodyLeads, TopicNotFound, TryLater
from frazil.core.names import TopicName
from frazil.core.principal import ANONYMOUS, LOCAL, Principal
from frazil.core.rows import Origin
from frazil.core.settings import make_settings
from frazil.node.movers.last_report import LastReport
from frazil.node.movers.lease import MoverName, this_host
from frazil.node.movers.table_progress import status_path
from frazil.node.node import Node, open_node

ORDERS = TopicName.parse("/shop/orders")
FACE = [
    "publish",
    "read",
    "subscribe",
    "create_topic",
    "describe_topic",
    "delete_topic",
    "query",
    "verify",
    "stats",
]
LIFE = {"leave", "start", "use", "end_streams", "stop", "close"}
"""What the process that made the Node does with it; doors do none of it."""
MOVER = MoverName("one", this_host(), 1)


def run(work: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    def test(tmp_path: Path) -> None:
        asyncio.run(asyncio.wait_for(work(tmp_path), 60))

    test.__name__, test.__doc__ = work.__name__, work.__doc__
    return test


@asynccontextmanager
async def started(folder: Path, traces: Any = None) -> AsyncIterator[Node]:
    with frazil.open(folder) as storage:
        node = Node(storage, has_broker=True, traces=traces)
        await node.start()
        try:
            yield node
        finally:
            node.end_streams()
            await node.stop()


class Recorder:
    """Traces that are written down."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, str]] = []

    def now_us(self) -> int:
        return 1

    async def publish(self, topic: Any, message: Any) -> int:
        offset = await topic.publish(message)
        self.spans.append(("published", topic.label))
        return int(offset)

    def published_batch(self, log: Any, *_: object) -> None:
        self.spans.append(("published", str(log.name)))

    def refused_batch(self, log: Any, *_: object) -> None:
        self.spans.append(("refused", str(log.name)))

    def reported(self, _: object) -> None:
        self.spans.append(("told", ""))


def message(text: str) -> OutgoingMessage:
    return OutgoingMessage(text.encode(), None, {}, Origin("p", 1))


# --- the face


def test_every_public_method_takes_the_caller_first() -> None:
    methods = {name: one for name, one in inspect.getmembers(Node, inspect.isfunction) if not name.startswith("_")}
    assert set(FACE) | LIFE <= set(methods)
    for name in set(methods) - LIFE:
        first = list(inspect.signature(methods[name]).parameters.values())[1]
        assert (first.name, first.annotation) == ("who", "Principal"), name
        assert first.default is inspect.Parameter.empty, name


def test_a_caller_is_a_value() -> None:
    assert Principal("local") == LOCAL != ANONYMOUS
    assert typing.get_type_hints(Principal) == {"name": str, "roles": tuple[str, ...], "expires_us": int | None}


@run
async def test_rows_go_in_and_come_out(tmp_path: Path) -> None:
    async with started(tmp_path) as node:
        await node.create_topic(LOCAL, ORDERS)
        assert await node.publish(LOCAL, str(ORDERS), [b"tea", b"milk"]) == frazil.OffsetRange(0, 2)
        rows = [row for batch in node.read(LOCAL, str(ORDERS), 1) for row in batch["_payload"].to_pylist()]
        assert rows == [b"milk"]
        described = node.describe_topic(LOCAL, ORDERS)
        assert (described["topic"], described["messages"], described["producers"]) == (str(ORDERS), 2, 0)
        assert [one.messages for one in node.stats(LOCAL).topics] == [2]
        await node.delete_topic(LOCAL, ORDERS)
        with pytest.raises(TopicNotFound):
            node.describe_topic(LOCAL, ORDERS)


@run
async def test_a_consumer_gets_what_is_published(tmp_path: Path) -> None:
    async with started(tmp_path) as node:
        await node.create_topic(LOCAL, ORDERS)
        number = await node.subscribe(LOCAL, str(ORDERS), "s", Kind.SHARED, "c")
        _, _, _, stream = node.broker(LOCAL).connect(number)
        await node.publish(LOCAL, str(ORDERS), [b"tea"])
        entry = await asyncio.wait_for(stream.take(), 10)
        assert entry is not None
        assert entry.message.payload == b"tea"


def test_parts_of_the_broker_say_that_it_is_off_or_not_open_yet(tmp_path: Path) -> None:
    with frazil.open(tmp_path) as storage:
        with pytest.raises(BrokerOff):
            Node(storage).broker(LOCAL)
        with pytest.raises(TryLater):
            Node(storage, has_broker=True).registry(LOCAL)


def test_a_query_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    """Here the program answers with the query that it was told."""
    program = (
        "import json, sys, pyarrow as pa\n"
        "batch = pa.record_batch({'told': [json.loads(sys.stdin.readline())], 'words': [' '.join(sys.argv[1:])]})\n"
        "with pa.ipc.new_stream(sys.stdout.buffer, batch.schema) as out: out.write_batch(batch)\n"
    )
    with frazil.open(tmp_path) as storage:
        with pytest.raises(InvalidInput, match="only by `frazil serve`"):
            Node(storage).query(LOCAL, "SELECT 1")
        node = Node(storage, command=lambda *_: [sys.executable, "-c", program])
        query = node.query(LOCAL, "SELECT 1", snapshot=7)
        try:
            reader = query.opened()
            assert reader is not None
            told = {"sql": "SELECT 1", "rules": None, "forwarded": None}
            assert reader.read_all().to_pylist() == [{"told": told, "words": "--snapshot 7 -- -"}]
        finally:
            query.kill()
            query.close()


@run
async def test_a_proof_is_a_job(tmp_path: Path) -> None:
    with frazil.open(tmp_path) as storage:
        node = Node(storage, command=lambda *_: [sys.executable, "-c", "print('{\"proven\": true}')"])
        job = node.verify(LOCAL, str(ORDERS))
        (work,) = (task for task in asyncio.all_tasks() if task.get_name() == "proof jobs")
        await work
        assert (job.state, job.asked, job.result) == ("done", {"topic": str(ORDERS)}, {"proven": True})


# --- one place for checks and traces


@run
async def test_a_schema_is_enforced_whatever_way_a_message_comes(tmp_path: Path) -> None:
    traces = Recorder()
    async with started(tmp_path, traces) as node:
        await node.create_topic(LOCAL, ORDERS)
        await asyncio.to_thread(node.registry(LOCAL).register, "n", "json_schema", b'{"type": "number"}')
        await asyncio.to_thread(node.schemas(LOCAL).configure, str(ORDERS), "n", "enforce", True)
        producer = await node.broker(LOCAL).create_producer(str(ORDERS), "p", reliable=True)
        single, batches = node.messages(LOCAL), node.publisher(LOCAL, str(ORDERS))
        with pytest.raises(MessageRefused):
            await single.publish(producer.topic, message("no number"))
        with pytest.raises(MessageRefused):
            await batches.check(lambda: [(b"no number", None, None)])
        with pytest.raises(MessageRefused, match="row 0"):
            await node.publish(LOCAL, str(ORDERS), [b"no number"])
        assert traces.spans == [("refused", str(ORDERS))]
        assert node.storage.topic(str(ORDERS)).stats().messages == 0
        fits = OutgoingMessage(b"1", None, {}, Origin("p", 1, node.registry(LOCAL).schema_id("n"), 1))
        assert await single.publish(producer.topic, fits) == 0


@run
async def test_messages_and_batches_are_traced(tmp_path: Path) -> None:
    traces = Recorder()
    async with started(tmp_path, traces) as node:
        producer = await node.broker(LOCAL).create_producer(str(ORDERS), "p", reliable=True)
        await node.messages(LOCAL).publish(producer.topic, message("one"))
        await node.publish(LOCAL, str(ORDERS), [b"two"])
        assert traces.spans == [("published", str(ORDERS))] * 2
        assert node.broker(LOCAL).counts.sends == 1


# --- from opening to closing


def test_the_embedded_face_gives_the_folder_back(tmp_path: Path) -> None:
    with frazil.open(tmp_path) as storage:
        storage.topic(str(ORDERS)).publish("tea")
    with open_node(tmp_path) as node:
        assert node.stats(LOCAL).topics_total == 1
    with frazil.open(tmp_path):
        pass


@run
async def test_a_broker_that_can_not_be_opened_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "~meta-copy.db").mkdir(parents=True)  # what the registry remembers numbers in
    with frazil.open(tmp_path) as storage:
        node = Node(storage, has_broker=True)
        with pytest.raises(frazil.FrazilError):
            await node.start()
        with pytest.raises(TryLater):
            node.broker(LOCAL)
        await node.stop()
        (tmp_path / "~meta-copy.db").rmdir()
        await node.start()
        assert node.broker(LOCAL).topics == {}
        await node.stop()


# --- what movers report


def test_a_report_is_kept_in_memory_and_written_for_others(tmp_path: Path) -> None:
    settings = make_settings({"data": tmp_path})
    traces = Recorder()
    with frazil.open(settings) as storage:
        movers = Node(storage, traces=traces).movers(LOCAL)  # type: ignore[arg-type]
        value = {"state": "running", "error": None, "topics": {"/a/b": {"log_id": "x", "table_end": 7, "error": None}}}
        with pytest.raises(NobodyLeads):
            movers.report(MOVER, value)
        movers.lead(MOVER, 5_000)
        movers.report(MOVER, value)
        assert (read_json(status_path(settings)) or {})["topics"]["/a/b"]["table_end"] == 7
        status_path(settings).unlink()
        assert (movers.status.read() or {})["topics"]["/a/b"]["table_end"] == 7
        movers.report(MOVER, {"state": "waiting", "error": "no catalog", "topics": {}})
        kept = movers.status.read() or {}
        assert (kept["state"], kept["known"]["/a/b"]["table_end"]) == ("waiting", 7)
        assert read_json(status_path(settings)) == kept
    assert traces.spans == [("told", "")] * 2


def test_what_an_earlier_process_was_told_is_read_once(tmp_path: Path) -> None:
    settings = make_settings({"data": tmp_path})
    write_json(status_path(settings), {"state": "stopped"})
    report = LastReport(settings)
    assert report.read() == {"state": "stopped"}
    write_json(status_path(settings), {"state": "changed by nobody"})
    assert report.read() == {"state": "stopped"}


def test_reports_on_topics_in_memory_are_kept_too() -> None:
    report = LastReport(make_settings({}).model_copy(update={"data": None}))
    assert report.read() is None
    report.keep(SystemClock(), "here", 1, {"state": "running", "topics": {}})
    assert (report.read() or {})["state"] == "running"


@run
async def test_a_server_that_is_alone_owns_every_topic(tmp_path: Path) -> None:
    async with started(tmp_path) as node:
        await node.create_topic(LOCAL, ORDERS, partitions=3)
        node.addresses["http"] = "http://127.0.0.1:1"
        ownership = node.ownership(LOCAL)
        ownership.must_own(ORDERS)
        (itself,) = ownership.brokers()
        assert ownership.owner_of(ORDERS) == itself
        assert (itself.broker_id, itself.topics, itself.addresses) == (this_host(), 3, {"http": "http://127.0.0.1:1"})
        assert (ownership.is_clustered, ownership.leader()) == (False, itself.broker_id)
        with pytest.raises(ClusterOff):
            await ownership.move(ORDERS)
