"""`verify` and SQL over tables of telemetry whose rows were written with other columns than today's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import frazil
from frazil.core.clock import SystemClock
from frazil.core.errors import TableRefused
from frazil.core.names import TopicName
from frazil.core.settings import make_settings
from frazil.lake.tables import written
from frazil.lake.tables.schema import TableLayout, TableName
from frazil.lake.tables.token import written_key
from frazil.node.query.session import SqlSession
from frazil.node.telemetry.opening import stored_tenants
from frazil.node.tiers.logs import FileView
from frazil.node.verify.proofs import prove
from frazil.pipeline.move import topic_rules
from frazil.pipeline.move.telemetry_tables import TelemetryTables
from frazil.pipeline.telemetry_errors import TelemetryErrors
from frazil.telemetry.decode import decoding
from frazil.telemetry.signals import Signal
from parts.in_process import MoverHere
from parts.otlp_requests import append, points, spans

TRACES, METRICS = "/acme.default/traces", "/acme.default/metrics"
ROUTE = {"source": "item", "key": "http.route", "column": "route"}
LATER = "flags"
"""The column that the earlier version does not have."""


class EarlierTables(TelemetryTables):
    """The tables of a version that did not know one column yet."""

    @property
    def tables(self) -> Mapping[TableName, TableLayout]:
        found = super().tables
        return {name: replace(layout, columns=_without(layout.columns)) for name, layout in found.items()}

    def written(self, table: TableName) -> tuple[str, ...]:
        return tuple(name for name in super().written(table) if name != LATER)

    def parts(self, rows: pa.RecordBatch, partition: int) -> Iterator[Mapping[TableName, pa.RecordBatch]]:
        for part in super().parts(rows, partition):
            yield {name: made.select(_without(made.schema).names) for name, made in part.items()}


def _without(columns: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in columns if field.name != LATER])


class World:
    def __init__(self, folder: Path) -> None:
        self.settings = make_settings({"data": folder / "data"})
        self.storage = frazil.open(self.settings).__enter__()
        with stored_tenants(self.settings) as tenants:
            tenants.create("acme", {}, with_key=False)

    @property
    def catalog(self) -> Any:
        return MoverHere(self.settings, self.storage).catalog

    def lift(self, *lifted: Mapping[str, str]) -> None:
        with stored_tenants(self.settings) as tenants:
            tenants.change("acme", {"lifted": list(lifted)})

    def move(self, topic: str, signal: Signal, *requests: bytes) -> None:
        """Append and move them, with a mover that knows the tenant as it is now."""
        append(self.storage, topic, signal, *requests)
        assert MoverHere(self.settings, self.storage, clock=SystemClock()).tick().failures == 0

    def problems(self, topic: str = TRACES) -> list[tuple[str, int, int]]:
        (proof,) = prove(self.settings, topic, lambda _: lambda _: None)
        return [(one.kind, one.range.start, one.range.end) for one in proof.problems]

    def change(self, column: str, offset: int, value: Any, table: str = "traces") -> None:
        """Change a value in all rows of a request, as another engine may; it also writes all files again."""
        found = self.catalog.load_table(("acme.default", table))
        rows = found.scan().to_arrow()
        at, here = rows.schema.get_field_index(column), pc.equal(rows["_offset"], offset)
        field = rows.schema.field(at)
        values = [
            value if is_here else one for is_here, one in zip(here.to_pylist(), rows[column].to_pylist(), strict=True)
        ]
        found.overwrite(rows.set_column(at, field, pa.array(values, field.type)))

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        with SqlSession(self.settings, FileView(self.settings), None, confined=True) as session:
            return [tuple(row.values()) for batch in session.run(query).batches for row in batch.to_pylist()]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.storage.close()


@pytest.fixture
def lifted(world: World) -> World:
    """Request 0 was moved before the attribute was lifted, 1 and 2 with it, 3 after it was lifted no more."""
    world.move(TRACES, Signal.TRACES, spans(0, http_route="/a"))
    world.lift(ROUTE)
    world.move(TRACES, Signal.TRACES, spans(1, http_route="/b"), spans(2))
    world.lift()
    world.move(TRACES, Signal.TRACES, spans(3, http_route="/c"))
    return world


@pytest.fixture
def two_versions(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """Requests 0 and 1 were moved by an earlier version, 2 by this one."""
    with monkeypatch.context() as earlier:
        earlier.setattr(topic_rules, "TelemetryTables", EarlierTables)
        world.move(TRACES, Signal.TRACES, spans(0), spans(1))
    assert LATER not in world.catalog.load_table(("acme.default", "traces")).schema().column_names
    world.move(TRACES, Signal.TRACES, spans(2))
    return world


def test_rows_of_an_earlier_version_lack_a_column_and_are_proven(two_versions: World) -> None:
    world = two_versions
    query = f"select distinct _offset, {LATER} from acme.default.traces order by 1"
    assert world.ask(query) == [(0, None), (1, None), (2, 0)]
    assert world.problems() == []
    append(world.storage, TRACES, Signal.TRACES, spans(3))
    assert world.ask(query) == [(0, None), (1, None), (2, 0), (3, 0)]


def test_changed_rows_beside_rows_of_an_earlier_version_are_found(two_versions: World) -> None:
    two_versions.move(TRACES, Signal.TRACES, spans(3))
    for column, offset, value in ((LATER, 0, 0), ("span_name", 1, "other"), (LATER, 2, None)):
        two_versions.change(column, offset, value)
    assert two_versions.problems() == [("changed", 0, 3)]


def test_unmoved_rows_have_a_column_that_the_table_lacks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(topic_rules, "TelemetryTables", EarlierTables)
        world.move(TRACES, Signal.TRACES, spans(0, 1))
    append(world.storage, TRACES, Signal.TRACES, spans(1, 1))
    assert world.ask(f"select _offset, {LATER} from acme.default.traces order by 1") == [(0, None), (1, 0)]
    assert world.problems() == []


def test_rows_of_any_time_are_proven_whatever_was_lifted_then(lifted: World) -> None:
    query = "select distinct _offset, route from acme.default.traces order by 1"
    assert lifted.ask(query) == [(0, None), (1, "/b"), (2, None), (3, None)]
    assert lifted.problems() == []
    lifted.change("span_name", 99, "nobody's")  # writes all rows again, in files that have the column
    assert lifted.problems() == []


def test_wrong_values_of_a_lifted_column_are_found(lifted: World) -> None:
    lifted.change("route", 1, "/x")
    assert lifted.problems() == [("changed", 1, 2)]
    for offset, value in ((0, "/a"), (1, None), (3, "/c")):
        lifted.change("route", offset, value)
    assert lifted.problems() == [("changed", 0, 2), ("changed", 3, 4)]


def test_a_column_may_get_another_attribute_later(world: World) -> None:
    world.lift(ROUTE)
    world.move(TRACES, Signal.TRACES, spans(0, http_route="/a", http_target="/a?b"))
    world.lift(ROUTE | {"key": "http.target"})
    world.move(TRACES, Signal.TRACES, spans(1, http_route="/a", http_target="/a?b"))
    assert world.ask("select distinct _offset, route from acme.default.traces order by 1") == [(0, "/a"), (1, "/a?b")]
    assert world.problems() == []


def test_tables_of_points_may_have_begun_with_other_lifted_attributes(world: World) -> None:
    """The table of sums has no rows, and so no record, until the attribute is lifted."""
    world.move(METRICS, Signal.METRICS, points(0, ["gauge"]))
    world.lift({"source": "resource", "key": "service.name", "column": "service"})
    world.move(METRICS, Signal.METRICS, points(1, ["gauge", "sum"]))
    assert world.problems(METRICS) == []


def test_a_replay_has_the_columns_of_its_own_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(decoding, "REQUEST_REPEATED_BYTES_MAX", 250)
        earlier.setattr(decoding, "PART_REPEATED_BYTES_MAX", 250)
        world.move(METRICS, Signal.METRICS, points(0, ["gauge"]), points(1), points(2))
    resource = {"source": "resource", "key": "service.name", "column": "service"}
    world.lift(resource)
    replay = TelemetryErrors(world.settings, TopicName.parse(METRICS), lambda _: None).replay()
    assert replay.rows == {"metrics": 4, "metrics_gauge": 4, "metrics_sum": 4}
    table = world.catalog.load_table(("acme.default", "metrics_gauge"))
    assert any(name.endswith(".replays") for name in table.properties)
    assert world.problems(METRICS) == []
    world.change("service", 1, "other", "metrics_gauge")
    assert world.problems(METRICS) == [("changed", 1, 2)]


def test_of_many_changes_the_oldest_are_compared_in_the_columns_that_they_share(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(written, "ENTRIES_MAX", 2)
    for number, lifted in enumerate([(), (ROUTE,), (), (ROUTE,)]):
        world.lift(*lifted)
        world.move(TRACES, Signal.TRACES, spans(number, http_route="/a"))
    assert world.problems() == []
    world.change("route", 3, "/x")
    world.change("span_name", 1, "other")
    assert world.problems() == [("changed", 1, 2), ("changed", 3, 4)]


def test_a_table_without_the_record_is_compared_in_the_columns_that_are_never_lifted(lifted: World) -> None:
    table = lifted.catalog.load_table(("acme.default", "traces"))
    (log_id,) = {name.split(".")[1] for name in table.properties if name.endswith(".end")}
    with table.transaction() as transaction:
        transaction.set_properties({written_key(log_id): "[]"})
    assert lifted.problems() == []
    lifted.change("span_name", 2, "other")
    assert lifted.problems() == [("changed", 2, 3)]


def test_a_column_that_another_engine_dropped_is_found_and_not_read_as_nulls(lifted: World) -> None:
    with lifted.catalog.load_table(("acme.default", "traces")).update_schema() as update:
        update.delete_column("route")  # its attribute is in the maps too, and is lifted no more
    assert lifted.problems() == []
    with lifted.catalog.load_table(("acme.default", "traces")).update_schema() as update:
        update.delete_column("span_kind")
    assert lifted.problems() == [("changed", 0, 4)]
    with pytest.raises(TableRefused, match="column span_kind was dropped"):
        lifted.ask("select count(*) from acme.default.traces")
