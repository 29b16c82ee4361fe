"""Requests of telemetry become rows of the tables of their signal, each once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import frazil
from frazil.core.clock import SystemClock
from frazil.core.errors import FrazilError, MetadataUnavailable
from frazil.core.settings import make_settings
from frazil.core.settings.lake import MIB
from frazil.lake.tables.token import count_key, ends, is_transformed
from frazil.meta.opening import open_meta
from frazil.node.movers.log_source import OwnLogs
from frazil.node.telemetry.admin import TenantAdmin
from frazil.node.telemetry.directory import TenantDirectory
from frazil.node.telemetry.tenants import Tenant
from frazil.pipeline.move.topic_rules import READ_AGAIN_US, TopicsOfSettings
from frazil.telemetry.schemas import tables_of
from frazil.telemetry.signals import SIGNAL_KEY, Signal
from frazil.testing import FakeClock
from parts.in_process import MoverHere
from parts.meddling import Meddling
from parts.otlp_requests import NOT_PROTOBUF, append, log_records, now_ns, points, spans

TRACES, LOGS, METRICS = "/acme.default/traces", "/acme.default/logs", "/acme.default/metrics"
DAY_NS = 86_400_000_000_000


class World:
    def __init__(self, folder: Path, **settings: Any) -> None:
        self.settings = make_settings({"data": folder / "data", **settings})
        self.storage = frazil.open(self.settings).__enter__()
        self.mover = self.started()

    def started(self) -> MoverHere:
        return MoverHere(self.settings, self.storage, clock=SystemClock())

    def rows(self, table: str) -> pa.Table:
        found: pa.Table = self.mover.catalog.load_table(("acme.default", table)).scan().to_arrow()
        return found.sort_by([("_offset", "ascending"), ("_index", "ascending")])

    def places(self, table: str) -> list[tuple[int, int]]:
        """The offset and the index of each row."""
        rows = self.rows(table)
        return list(zip(rows["_offset"].to_pylist(), rows["_index"].to_pylist(), strict=True))

    def tables(self) -> list[str]:
        return sorted(name[-1] for name in self.mover.catalog.list_tables("acme.default"))

    def close(self) -> None:
        self.storage.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def test_spans_are_rows_of_the_table_of_traces(world: World) -> None:
    append(world.storage, TRACES, Signal.TRACES, spans(0), spans(1, count=2))
    report = world.mover.tick()
    assert (report.failures, report.commits, report.rows) == (0, 1, 5)
    assert world.tables() == ["traces"]
    assert world.places("traces") == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    table = world.mover.table(TRACES)
    assert is_transformed(table)
    (log_id,) = ends(table)
    assert table.properties[count_key(log_id)] == "5"
    assert table.schema().as_arrow().names == tables_of(Signal.TRACES)["traces"].names
    assert [str(field.transform) for field in table.spec().fields] == ["day"]
    assert world.mover.tick().commits == 0


@pytest.mark.parametrize("mark", [b"unknown", b"\xff", b"traces"])
def test_a_topic_whose_creator_marked_its_columns_is_moved_as_any_other(world: World, mark: bytes) -> None:
    columns = pa.schema([pa.field("request", pa.int64(), metadata={SIGNAL_KEY: mark})])
    marked = world.storage.topic("/acme.default/marked", schema=columns)
    marked.publish_many(pa.RecordBatch.from_pydict({"request": [1, 2]}, columns))
    append(world.storage, TRACES, Signal.TRACES, spans(0))
    assert world.mover.tick().failures == 0
    assert (world.tables(), world.places("traces")) == (["marked", "traces"], [(0, 0), (0, 1), (0, 2)])
    assert world.mover.catalog.load_table(("acme.default", "marked")).scan().to_arrow()["request"].to_pylist() == [1, 2]


def test_files_are_sorted_by_service_and_time_and_say_so(world: World) -> None:
    append(world.storage, TRACES, Signal.TRACES, *(spans(number, count=20) for number in range(7)))
    world.mover.tick()
    table = world.mover.table(TRACES)
    names = [table.schema().find_column_name(field.source_id) for field in table.sort_order().fields]
    assert names == ["service_name", "timestamp"]
    (task,) = table.scan().plan_files()
    assert task.file.sort_order_id == table.sort_order().order_id
    rows = pq.read_table(task.file.file_path.removeprefix("file://"), columns=names)
    keys = [("service_name", "ascending"), ("timestamp", "ascending")]
    assert rows.num_rows == 140
    assert rows.equals(rows.sort_by(keys))


def test_each_kind_of_points_has_a_table_once_there_are_some(world: World) -> None:
    append(world.storage, METRICS, Signal.METRICS, points(0, ["gauge"]))
    report = world.mover.tick()
    assert (report.failures, world.tables()) == (0, ["metrics", "metrics_gauge"])
    append(world.storage, METRICS, Signal.METRICS, points(1, ["sum", "summary"]), points(2, ["gauge", "sum"]))
    assert world.mover.tick().failures == 0
    assert world.tables() == ["metrics", "metrics_gauge", "metrics_sum", "metrics_summary"]
    assert world.places("metrics") == [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert world.places("metrics_gauge") == [(0, 0), (0, 1), (2, 0), (2, 1)]
    assert world.places("metrics_sum") == [(1, 0), (1, 1), (2, 2), (2, 3)]
    assert world.places("metrics_summary") == [(1, 2), (1, 3)]
    append(world.storage, METRICS, Signal.METRICS, points(3, ["gauge"]))
    assert world.mover.tick().commits == 2, "tables without rows are not committed"


def test_what_cannot_be_decoded_goes_to_the_table_of_errors_in_the_same_move(world: World) -> None:
    append(world.storage, LOGS, Signal.LOGS, log_records(0), log_records(1))
    world.mover.tick()
    assert world.tables() == ["logs"], "there is no table of errors without errors"
    append(world.storage, LOGS, Signal.LOGS, NOT_PROTOBUF, log_records(3), NOT_PROTOBUF)
    report = world.mover.tick()
    assert (report.failures, report.undecoded, report.topics[LOGS].table_end) == (0, {LOGS: 2}, 5)
    assert [offset for offset, _ in world.places("logs")] == [0, 0, 0, 1, 1, 1, 3, 3, 3]
    errors = world.rows("logs__errors")
    assert errors["_offset"].to_pylist() == [2, 4]
    assert errors["raw"].to_pylist() == [NOT_PROTOBUF] * 2
    assert all(errors["reason"].to_pylist())


def test_a_range_of_errors_alone_moves_the_topics_own_table_on(world: World) -> None:
    append(world.storage, LOGS, Signal.LOGS, NOT_PROTOBUF)
    report = world.mover.tick()
    assert (report.failures, report.topics[LOGS].table_end, world.places("logs")) == (0, 1, [])
    assert world.rows("logs__errors")["_offset"].to_pylist() == [0]


def test_absurd_times_do_not_make_partitions(world: World) -> None:
    far = [spans(day, at_ns=now_ns() - day * DAY_NS) for day in range(1, 1_000)]
    odd = [spans(0, at_ns=at) for at in (1, 10**9, now_ns() + 2 * DAY_NS, 2**63 - 1, 2**64 - 10**9)]
    append(world.storage, TRACES, Signal.TRACES, *far, *odd)
    assert world.mover.tick().failures == 0
    assert len(list(world.mover.table(TRACES).scan().plan_files())) <= 34
    rows = world.rows("traces")
    assert rows.num_rows == 3 * 1_004
    assert {1, 10**9, -(10**9)} <= set(rows["time_unix_nano"].to_pylist()), "exact times stay"
    old = rows.filter(pc.equal(rows["_offset"], 900))
    assert old["timestamp"].to_pylist() == old["_append_time"].to_pylist()


def test_partitions_may_be_hours(tmp_path: Path) -> None:
    world = World(tmp_path, topics={"/acme.*/*": {"partitioning": ["hour(timestamp)"]}})
    append(world.storage, LOGS, Signal.LOGS, log_records(0), NOT_PROTOBUF)
    assert world.mover.tick().failures == 0
    tables = [world.mover.catalog.load_table(("acme.default", name)) for name in ("logs", "logs__errors")]
    assert [str(table.spec().fields[0].transform) for table in tables] == ["hour", "day"]
    world.close()


def test_a_lifted_attribute_is_a_column_from_then_on_and_stays_one(world: World) -> None:
    with closing(open_meta(world.settings)) as store:
        tenants = TenantDirectory(store, follows=False)
        lifted = {"source": "item", "key": "http.route", "column": "route"}
        admin = TenantAdmin(tenants, world.settings.telemetry, SystemClock(), None, lambda: None)  # type: ignore[arg-type, return-value]
        admin.create("acme", {"lifted": []})
        append(world.storage, TRACES, Signal.TRACES, spans(0, count=1, http_route="/a"))
        world.mover.tick()
        admin.change("acme", {"lifted": [lifted]})
        append(world.storage, TRACES, Signal.TRACES, spans(1, count=1, http_route="/b"), spans(2, count=1))
        world.mover = world.started()
        world.mover.tick()
        admin.change("acme", {"lifted": []})
        append(world.storage, TRACES, Signal.TRACES, spans(3, count=1, http_route="/c"))
        world.mover = world.started()
        assert world.mover.tick().failures == 0
    assert world.rows("traces")["route"].to_pylist() == [None, "/b", None, None]


def test_a_tenants_freshness_and_file_size_decide_when_its_topics_are_due(world: World) -> None:
    clock, known = FakeClock(), {"acme": Tenant("acme", 0, freshness_ms=700, target_file_bytes=MIB * 8)}
    topics = TopicsOfSettings(world.settings, clock, lambda: known)
    append(world.storage, TRACES, Signal.TRACES, spans(0))
    (info,) = OwnLogs(world.storage).logs()
    writer = topics.of(info).rules.writer
    assert (writer.flush_interval_ms, writer.max_memory_bytes, topics.of(info).group) == (700, MIB * 8, "acme")
    known["acme"] = Tenant("acme", 0)
    clock.advance(READ_AGAIN_US)
    default = world.settings.telemetry
    writer = topics.of(info).rules.writer
    assert (writer.flush_interval_ms, writer.max_memory_bytes) == (default.freshness_ms, default.target_file_bytes)


def test_while_tenants_were_never_read_their_topics_wait_and_later_the_last_known_count(world: World) -> None:
    clock, known = FakeClock(), {"acme": Tenant("acme", 0, freshness_ms=700)}
    errors: list[FrazilError] = [MetadataUnavailable("etcd", "it is away")]

    def read() -> dict[str, Tenant]:
        if errors:
            raise errors[0]
        return known

    topics = TopicsOfSettings(world.settings, clock, read)
    append(world.storage, TRACES, Signal.TRACES, spans(0))
    (info,) = OwnLogs(world.storage).logs()
    assert topics.of(info).error is errors[0]
    away = errors.pop()
    clock.advance(READ_AGAIN_US)
    assert (topics.of(info).error, topics.of(info).rules.writer.flush_interval_ms) == (None, 700)
    errors.append(away)
    clock.advance(READ_AGAIN_US)
    assert (topics.of(info).error, topics.of(info).rules.writer.flush_interval_ms) == (None, 700)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("killed", [1, 2, 3, 4])
def test_a_mover_killed_at_any_commit_of_metrics_is_made_good_by_the_next(
    world: World, killed: int, after: bool
) -> None:
    """At each commit of a tick that has rows for three tables and for errors."""
    append(world.storage, METRICS, Signal.METRICS, points(0), NOT_PROTOBUF)
    assert world.mover.tick().failures == 0
    append(world.storage, METRICS, Signal.METRICS, points(2), NOT_PROTOBUF)

    def crash(number: int, commit: Callable[[], Any]) -> Any:
        if number == killed and not after:
            raise KeyboardInterrupt
        done = commit()
        if number == killed:
            raise KeyboardInterrupt
        return done

    catalog: Any = Meddling(world.mover.catalog, crash)
    with pytest.raises(KeyboardInterrupt):
        MoverHere(world.settings, world.storage, clock=SystemClock(), catalog=catalog).tick()
    append(world.storage, METRICS, Signal.METRICS, points(4, ["sum"]))
    world.mover = world.started()
    for _ in range(2):
        assert world.mover.tick().failures == 0
    assert world.places("metrics") == [(0, 0), (0, 1), (2, 0), (2, 1), (4, 0)]
    assert world.places("metrics_gauge") == [(0, 0), (0, 1), (2, 0), (2, 1)]
    assert world.places("metrics_sum") == [(0, 2), (0, 3), (2, 2), (2, 3), (4, 0), (4, 1)]
    assert world.rows("metrics__errors")["_offset"].to_pylist() == [1, 3]
