"""What Frazil tells of itself: stored in its own tenant, without a loop, bounded, seen by administrators alone."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from telemetry_nodes import admin, create, run, settings_of, until

import frazil
from frazil.core import access
from frazil.core.access import Action
from frazil.core.clock import SystemClock
from frazil.core.errors import InvalidName, InvalidSettings, Overloaded, PermissionDenied
from frazil.core.names import TopicName
from frazil.core.principal import ANONYMOUS, LOCAL
from frazil.core.settings import make_settings
from frazil.lake.tables.schema import TableName
from frazil.node.access.portable import grants_to_json
from frazil.node.access.roles import BUILT_IN, RoleGrant, decide, made_role
from frazil.node.node import Node, open_node
from frazil.node.query.readable import readable
from frazil.node.telemetry.own import exporter
from frazil.node.telemetry.own.handler import TENANT, OwnLogHandler
from frazil.node.telemetry.own.queues import FULL, OwnCounts, OwnQueue
from frazil.node.telemetry.places import TenantPlace
from frazil.telemetry.decode import decode
from frazil.telemetry.own.logs import OwnRecord, log_request
from frazil.telemetry.own.metrics import OwnTimes, metrics_request
from frazil.telemetry.signals import Signal

LOGS = "/_frazil.default/logs"
_log = logging.getLogger("frazil.test")


@asynccontextmanager
async def started(folder: Path, *, secured: bool = False, **more: Any) -> AsyncIterator[Node]:
    settings = settings_of(folder, secured=secured, telemetry={"own": True, **more.pop("telemetry", {})}, **more)
    with open_node(settings, serves=True) as node:
        await node.start()
        try:
            yield node
        finally:
            node.end_streams()
            await node.stop()


def stored(folder: Path, signal: Signal, table: str) -> list[dict[str, Any]]:
    """The rows of a table of the own tenant, decoded from the log."""
    with frazil.open(folder / "data") as storage:
        topic = f"/_frazil.default/{signal}"
        if topic not in storage.topics():
            return []
        batches = list(storage.topic(topic, create=False).read_batches())
    rows = []
    for batch in batches:
        columns = (batch.column(name) for name in ("request", "_offset", "_append_time"))
        rows += decode(signal, *columns).rows[table].to_pylist()
    return rows


@pytest.fixture(autouse=True)
def logs_at_info() -> Iterator[None]:
    root = logging.getLogger()
    before, root.level = root.level, logging.INFO
    root.setLevel(logging.INFO)
    yield
    root.setLevel(before)


def test_records_are_stored_with_what_they_say(tmp_path: Path) -> None:
    async def work() -> None:
        async with started(tmp_path):
            _log.info("a %s\nof %d lines", "record", 2, extra={"topic": "/shop/orders"})
            logging.getLogger("other").info("not Frazil's")
            logging.getLogger("other").warning("but a warning")
            try:
                raise ValueError("wrong")
            except ValueError:
                _log.exception("it failed")

    asyncio.run(work())
    rows = {row["body"]: row for row in stored(tmp_path, Signal.LOGS, "logs")}
    assert {"a record\nof 2 lines", "but a warning", "it failed"} <= set(rows)
    assert "not Frazil's" not in rows
    one, failed = rows["a record\nof 2 lines"], dict(rows["it failed"]["log_attributes"])
    assert (one["severity_number"], one["severity_text"], one["service_name"]) == (9, "INFO", "frazil")
    assert dict(one["log_attributes"])["frazil.topic"] == "/shop/orders"
    assert dict(one["log_attributes"])["log.logger"] == "frazil.test"
    assert dict(one["resource_attributes"])["frazil.broker_id"]
    assert (failed["exception.type"], failed["exception.message"]) == ("ValueError", "wrong")
    assert "raise ValueError" in failed["exception.stacktrace"]


def test_metrics_are_those_of_the_registry_and_the_last_ones_are_stored_at_the_end(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    Gauge("load", "How much.", ["cpu"], registry=registry).labels("0").set(0.5)

    async def work() -> None:
        async with started(tmp_path) as node:
            assert node.own_telemetry is not None
            node.own_telemetry.collect = registry.collect

    asyncio.run(work())
    (row,) = stored(tmp_path, Signal.METRICS, "metrics_gauge")
    assert (row["metric_name"], row["value"], dict(row["attributes"])) == ("load", 0.5, {"cpu": "0"})


def test_published_batches_are_traced_but_not_its_own(tmp_path: Path) -> None:
    async def work() -> None:
        async with started(tmp_path, traces={"sample_ratio": 1}) as node:
            await node.create_topic(ANONYMOUS, TopicName.parse("/shop/orders"))
            await node.publish(ANONYMOUS, "/shop/orders", ["tea"])
            _log.info("something to append")

    asyncio.run(work())
    rows = stored(tmp_path, Signal.TRACES, "traces")
    assert "publish /shop/orders" in {row["span_name"] for row in rows}
    assert not [row for row in rows if "_frazil" in row["span_name"]]
    assert stored(tmp_path, Signal.LOGS, "logs")


def test_what_the_exporter_logs_is_not_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each failure would lead to a record, and each record to a failure."""

    async def work() -> None:
        async with started(tmp_path) as node:
            telemetry, own = node.telemetry(LOCAL), node.own_telemetry
            assert own is not None
            failing = asyncio.Event()

            async def export(*_: Any) -> int:
                _log.error("the append failed")
                logging.getLogger("frazil.log").error("%s is broken", LOGS)
                await asyncio.to_thread(_log.error, "so did its thread")
                failing.set()
                raise Overloaded("append", 1, 10)

            monkeypatch.setattr(telemetry, "export", export)
            _log.info("before")
            await asyncio.wait_for(failing.wait(), 30)
            monkeypatch.undo()
            _log.info("after")

    asyncio.run(work())
    bodies = [row["body"] for row in stored(tmp_path, Signal.LOGS, "logs")]
    assert "after" in bodies
    assert not [one for one in bodies if "failed" in one or "broken" in one or "thread" in one]


def test_refused_requests_are_dropped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with started(tmp_path) as node:
            own = node.own_telemetry
            assert own is not None

            async def export(*_: Any) -> int:
                raise Overloaded("append", 1, 10)

            monkeypatch.setattr(node.telemetry(LOCAL), "export", export)
            own.put_spans(b"", 7)
            await until(lambda: bool(own.counts.read()[1]))
            _, dropped = own.counts.read()
            assert dropped[Signal.TRACES, "overloaded"] == 7

    asyncio.run(asyncio.wait_for(work(), 60))


def test_what_is_being_appended_when_the_process_stops_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with started(tmp_path) as node:
            telemetry, own, begun, goes_on = node.telemetry(LOCAL), node.own_telemetry, asyncio.Event(), asyncio.Event()
            export = telemetry.export

            async def slow(*given: Any) -> int:
                begun.set()
                await goes_on.wait()
                return await export(*given)

            monkeypatch.setattr(telemetry, "export", slow)
            _log.info("the last one")
            assert own is not None
            for number in range(3):
                own.put_spans(b"", number)
            await asyncio.wait_for(begun.wait(), 30)
            asyncio.get_running_loop().call_later(0.5, goes_on.set)  # the process stops meanwhile
        stored_items, dropped = own.counts.read()
        assert stored_items[Signal.TRACES] == 3
        assert dropped == {}

    asyncio.run(asyncio.wait_for(work(), 60))
    assert "the last one" in [row["body"] for row in stored(tmp_path, Signal.LOGS, "logs")]


def test_what_cannot_be_stored_before_the_process_stops_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "STOP_SECONDS_MAX", 0.1)

    async def work() -> None:
        async with started(tmp_path) as node:
            own, begun = node.own_telemetry, asyncio.Event()
            assert own is not None

            async def hangs(*_: Any) -> int:
                begun.set()
                await asyncio.Event().wait()
                raise AssertionError

            monkeypatch.setattr(node.telemetry(LOCAL), "export", hangs)
            for spans in (5, 7):
                own.put_spans(b"", spans)
            await asyncio.wait_for(begun.wait(), 30)
        assert own.counts.read()[1][Signal.TRACES, exporter.STOPPED] == 12

    asyncio.run(asyncio.wait_for(work(), 60))


def test_the_tenant_comes_back_after_its_deletion(tmp_path: Path) -> None:
    async def work() -> None:
        async with started(tmp_path) as node:
            parts = node.tenant_parts
            assert parts is not None
            await until(lambda: parts.directory.get(TENANT) is not None)
            await asyncio.to_thread(admin(node).delete, "_frazil", force=True)
            _log.info("after the deletion")

    asyncio.run(asyncio.wait_for(work(), 60))
    assert "after the deletion" in [row["body"] for row in stored(tmp_path, Signal.LOGS, "logs")]


def test_a_full_queue_drops_and_counts() -> None:
    counts = OwnCounts()
    queue: OwnQueue[Any] = OwnQueue(Signal.LOGS, 10_000, counts)
    handler = OwnLogHandler(queue, counts)
    for number in range(100):
        handler.handle(logging.makeLogRecord({"name": "frazil", "levelno": 30, "msg": f"{number} " + "x" * 100}))
    kept = queue.take(1_000)
    dropped = counts.read()[1]
    assert dropped == {(Signal.LOGS, FULL): 100 - len(kept)}
    assert 0 < len(kept) < 20
    handler.handle(logging.makeLogRecord({"name": "frazil", "levelno": 30, "msg": "there is room again"}))
    assert len(queue.take(1_000)) == 1


def test_a_record_that_cannot_be_formatted_fails_nobody() -> None:
    counts = OwnCounts()
    queue: OwnQueue[Any] = OwnQueue(Signal.LOGS, 10_000, counts)
    record = logging.makeLogRecord({"name": "frazil", "levelno": 30, "msg": "%d", "args": ("x",)})
    OwnLogHandler(queue, counts).handle(record)
    assert counts.read()[1] == {(Signal.LOGS, "unreadable"): 1}


def test_families_of_prometheus_keep_their_values() -> None:
    registry = CollectorRegistry()
    Counter("orders", "Orders.", ["shop"], registry=registry).labels("a").inc(3)
    histogram = Histogram("took_seconds", "Time.", buckets=(0.1, 1.0), registry=registry)
    for value in (0.05, 0.5, 0.6, 7.0):
        histogram.observe(value)
    Gauge("nan", "Nothing.", registry=registry).set(math.nan)
    request, points = metrics_request(registry.collect(), OwnTimes(5, 9), {"service.name": "frazil"}, "1")
    found = decode(
        Signal.METRICS, pa.array([request]), pa.array([0], pa.int64()), pa.array([0], pa.timestamp("us", "UTC"))
    ).rows
    (counter,) = (row for row in found["metrics_sum"].to_pylist() if row["metric_name"] == "orders_total")
    assert (counter["value"], counter["is_monotonic"], counter["aggregation_temporality"]) == (3, True, "Cumulative")
    assert (counter["start_time_unix_nano"], counter["time_unix_nano"]) == (5, 9)
    (took,) = found["metrics_histogram"].to_pylist()
    assert (took["bucket_counts"], took["explicit_bounds"], took["count"]) == ([1, 2, 1], [0.1, 1.0], 4)
    assert (took["sum"], took["metric_unit"]) == (pytest.approx(8.15), "s")
    assert points == sum(found[table].num_rows for table in found if table != "metrics")


def test_log_requests_of_any_text_are_valid() -> None:
    record = OwnRecord(1, 9, "INFO", "a name \udcff", {"path": "\ud800", "x": object(), "y": 2**80, "z": True})
    request = pa.array([log_request([record], {"service.name": "frazil"}, "1")])
    found = decode(Signal.LOGS, request, pa.array([0], pa.int64()), pa.array([0], pa.timestamp("us", "UTC")))
    (row,) = found.rows["logs"].to_pylist()
    assert (row["body"], dict(row["log_attributes"])["path"], found.errors.num_rows) == ("a name ?", "?", 0)


# --- nobody else


@run
async def test_nobody_else_creates_or_writes_it_while_security_is_off(folder: Path) -> None:
    async with started(folder) as node:
        telemetry = node.telemetry(ANONYMOUS)
        with pytest.raises(InvalidName, match="Frazil's own"):
            await asyncio.to_thread(admin(node).create, "_other", {})
        with pytest.raises(PermissionDenied):
            telemetry.place(ANONYMOUS, "_frazil", None)
        with pytest.raises(PermissionDenied):
            await telemetry.export(ANONYMOUS, TenantPlace("_frazil", "default"), Signal.LOGS, b"", 1)
        with pytest.raises(PermissionDenied):
            await node.create_topic(ANONYMOUS, TopicName.parse("/_frazil.default/mine"))
        with pytest.raises(PermissionDenied):
            await node.publish(ANONYMOUS, LOGS, ["x"])
        await until(lambda: TENANT in {one.name for one in admin(node).list() if one.datasets})
        assert telemetry.existing(ANONYMOUS, TENANT, None).tenant == TENANT


@run
async def test_tenants_neither_see_nor_write_it(folder: Path) -> None:
    async with started(folder, secured=True) as node:
        acme = await create(node, "acme")
        telemetry = node.telemetry(acme)
        errors = []
        for tenant in ("_frazil", "_nobody"):
            for call in (telemetry.place, telemetry.existing):
                with pytest.raises(PermissionDenied) as refused:
                    call(acme, tenant, None)
                errors.append(refused.value.message.replace(tenant, "NAME"))
        assert len(set(errors)) == 2
        assert LOGS not in node.topic_names(acme)


def test_administrators_alone_see_it_unless_a_role_or_a_scope_names_it() -> None:
    topic, every = access.topic(LOGS), "*"
    custom = made_role("all", [{"actions": ["read"], "kind": "*", "pattern": "*"}])
    naming = made_role("its", [{"actions": ["read"], "kind": "*", "pattern": "/_frazil.*"}])

    def reads(*grants: RoleGrant) -> bool:
        return decide(grants, Action.READ, topic)

    assert reads(RoleGrant(BUILT_IN["admin"], every))
    assert reads(RoleGrant(BUILT_IN["reader"], "/_frazil.*/*"))
    assert reads(RoleGrant(naming, every))
    for role in (BUILT_IN["reader"], BUILT_IN["consumer"], BUILT_IN["operator"], custom):
        assert not reads(RoleGrant(role, every))
        assert not reads(RoleGrant(role, "/*"))
    assert not reads(RoleGrant(BUILT_IN["admin"], "/*"))
    deny = made_role("none", [{"effect": "deny", "actions": ["read"], "kind": "*", "pattern": "*"}])
    assert not reads(RoleGrant(BUILT_IN["admin"], every), RoleGrant(deny, every))
    for action in (Action.PRODUCE, Action.CREATE):
        assert not decide([RoleGrant(BUILT_IN["admin"], every)], action, topic)
    assert decide([RoleGrant(BUILT_IN["admin"], every)], Action.PRODUCE, access.topic("/_frazil/logs"))
    may_read = readable(grants_to_json([RoleGrant(BUILT_IN["reader"], every)]))
    assert not may_read(TableName("_frazil.default", "logs"))
    assert may_read(TableName("acme.default", "logs"))


def test_it_needs_telemetry() -> None:
    with pytest.raises(InvalidSettings, match="own needs enabled"):
        make_settings({"telemetry": {"own": True}})


def test_it_is_off_by_default(tmp_path: Path) -> None:
    with open_node(settings_of(tmp_path), serves=True, clock=SystemClock()) as node:
        assert node.own_telemetry is None
