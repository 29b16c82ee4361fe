"""SQL over tables of telemetry while the mover works: each row of each request once, wherever it is by then."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from tiers import remove_what_the_table_has

import frazil
from frazil.core.clock import SystemClock
from frazil.core.errors import DerivedTableBehind
from frazil.core.settings import Settings
from frazil.lake.tables.token import ends
from frazil.node.query.session import AsOf, SqlSession
from frazil.node.telemetry.opening import stored_tenants
from frazil.node.tiers.logs import FileView
from frazil.telemetry.schemas import tables_of
from frazil.telemetry.signals import Signal
from parts.in_process import MoverHere
from parts.meddling import Meddling
from parts.telemetry import metrics, send, span, spans, trace

Ask = Callable[..., list[tuple[Any, ...]]]
ROUNDS = 6
PADDING = 20_000
"""Characters of a request that let a few of them fill a segment."""
POINTS = ("metrics_gauge", "metrics_sum", "metrics_histogram")
METRICS = "/acme.default/metrics"


@pytest.fixture
def ask(settings: Settings) -> Ask:
    def run(query: str, as_of: AsOf | None = None) -> list[tuple[Any, ...]]:
        with SqlSession(settings, FileView(settings), as_of, confined=True) as session:
            return [tuple(row.values()) for batch in session.run(query).batches for row in batch.to_pylist()]

    return run


@pytest.fixture
def mover(settings: Settings, storage: frazil.Storage) -> MoverHere:
    return MoverHere(settings, storage, clock=SystemClock())


def points(number: int, padding: str = "") -> bytes:
    """Two gauges in each request, a sum in every second and a histogram in every third."""
    request, scope = metrics("shop")
    for value in range(2):
        scope.metrics.add(name="load", description=padding).gauge.data_points.add(as_int=value)
    if number % 2 == 0:
        scope.metrics.add(name="sold").sum.data_points.add(as_int=number)
    if number % 3 == 0:
        scope.metrics.add(name="took").histogram.data_points.add(count=number)
    return bytes(request.SerializeToString())


def places(ask: Ask, table: str) -> list[tuple[int, int]]:
    return sorted(ask(f"select _offset, _index from acme.default.{table}"))


def all_places(ask: Ask) -> dict[str, list[tuple[int, int]]]:
    return {table: places(ask, table) for table in ("metrics", *POINTS)}


def test_moved_and_unmoved_rows_are_one_table(ask: Ask, storage: frazil.Storage, mover: MoverHere) -> None:
    send(storage, Signal.METRICS, [points(number) for number in range(6)])
    unmoved = all_places(ask)
    assert [len(found) for found in unmoved.values()] == [17, 12, 3, 2]
    assert mover.tick().failures == 0
    assert all_places(ask) == unmoved
    assert places(ask, "metrics_summary") == places(ask, "metrics__errors") == []
    send(storage, Signal.METRICS, [points(1), b"\xff", points(6)])
    assert [len(found) for found in all_places(ask).values()] == [17 + 6, 16, 4, 3]
    assert places(ask, "metrics__errors") == [(7, None)]
    both = all_places(ask)
    assert mover.tick().failures == 0
    assert all_places(ask) == both
    assert ask("select reason <> '', raw from acme.default.metrics__errors") == [(True, b"\xff")]


def test_columns_of_moved_and_unmoved_rows_have_the_same_values(
    ask: Ask, storage: frazil.Storage, mover: MoverHere
) -> None:
    given = {"trace": trace(1), "id": span(1), "attributes": {"a": 1, "b": "x"}, "events": [(5, "e")], "status": 2}
    send(storage, Signal.TRACES, [spans("shop", given)])
    columns = [name for name in tables_of(Signal.TRACES)["traces"].names if name != "_append_time"]
    query = f"select {', '.join(columns)} from acme.default.traces"
    before = ask(query)
    mover.tick()
    assert ask(query) == before
    send(storage, Signal.TRACES, [spans("shop", given)])
    found = ask(f"{query} order by _offset")
    assert [row[1:] for row in found] == [before[0][1:]] * 2


@pytest.mark.parametrize("killed", [1, 2, 3, 4])
@pytest.mark.parametrize("after", [True, False])
def test_between_the_commits_of_a_topic_no_row_is_missing_or_doubled(
    ask: Ask, settings: Settings, storage: frazil.Storage, mover: MoverHere, killed: int, after: bool
) -> None:
    send(storage, Signal.METRICS, [points(number) for number in range(4)])
    mover.tick()
    send(storage, Signal.METRICS, [points(number) for number in range(6)])
    expected = all_places(ask)

    def crash(number: int, commit: Callable[[], Any]) -> Any:
        if number == killed and not after:
            raise KeyboardInterrupt
        done = commit()
        if number == killed:
            raise KeyboardInterrupt
        return done

    broken = MoverHere(settings, storage, clock=SystemClock(), catalog=Meddling(mover.catalog, crash))  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        broken.tick()
    assert all_places(ask) == expected
    MoverHere(settings, storage, clock=SystemClock()).tick()
    assert all_places(ask) == expected


def test_queries_while_the_mover_works_and_retention_removes(
    ask: Ask, storage: frazil.Storage, mover: MoverHere
) -> None:
    """Senders, a mover with a retention behind it and queries, all at once."""
    stop, errors = threading.Event(), []
    topic = send(storage, Signal.METRICS, [points(0)])

    def work() -> None:
        try:
            while not stop.is_set():
                send(storage, Signal.METRICS, [points(number, "x" * PADDING) for number in range(6)])
                assert mover.tick().failures == 0
                (end,) = ends(mover.table(METRICS)).values()
                remove_what_the_table_has(storage, topic, end)
        except Exception as error:
            errors.append(error)
            raise

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(ROUNDS):
            before = topic.stats().end
            for table, per_six in (("metrics_gauge", 12), ("metrics_sum", 3)):
                found = places(ask, table)
                assert len(found) == len(set(found))
                assert len(found) >= (before - 1) // 6 * per_six
    finally:
        stop.set()
        thread.join()
    assert errors == []
    assert topic.log.first_offset > 0
    assert len(places(ask, "metrics_gauge")) == 2 * topic.stats().end


def test_a_derived_table_that_was_dropped_is_refused(ask: Ask, storage: frazil.Storage, mover: MoverHere) -> None:
    send(storage, Signal.METRICS, [points(0)])
    mover.tick()
    mover.catalog.drop_table(("acme.default", "metrics_sum"))
    with pytest.raises(DerivedTableBehind):
        places(ask, "metrics_sum")
    assert len(places(ask, "metrics_gauge")) == 2


def test_a_column_that_was_lifted_later_is_there_for_new_rows(
    ask: Ask, settings: Settings, storage: frazil.Storage, mover: MoverHere
) -> None:
    with stored_tenants(settings) as tenants:
        tenants.create("acme", {}, with_key=False)
        given = {"trace": trace(1), "id": span(1), "attributes": {"http.status": 404}}
        send(storage, Signal.TRACES, [spans("shop", given)])
        mover.tick()
        lifted = [{"source": "item", "key": "http.status", "column": "status", "type": "int64"}]
        tenants.change("acme", {"lifted": lifted})
        send(storage, Signal.TRACES, [spans("shop", given)])
        query = "select _offset, status from acme.default.traces order by 1"
        assert ask(query) == [(0, None), (1, 404)]
        MoverHere(settings, storage, clock=SystemClock()).tick()
        assert ask(query) == [(0, None), (1, 404)]
        tenants.change("acme", {"lifted": None})
        send(storage, Signal.TRACES, [spans("shop", given)])
        assert ask(query) == [(0, None), (1, 404), (2, None)]


def test_a_snapshot_has_the_rows_of_the_table_alone(ask: Ask, storage: frazil.Storage, mover: MoverHere) -> None:
    send(storage, Signal.METRICS, [points(0)])
    mover.tick()
    table = mover.catalog.load_table(("acme.default", "metrics_gauge"))
    send(storage, Signal.METRICS, [points(0)])
    snapshot = AsOf(table.current_snapshot().snapshot_id)
    assert ask("select count(*) from acme.default.metrics_gauge", snapshot) == [(2,)]
    assert len(places(ask, "metrics_gauge")) == 4


def test_a_topic_that_was_made_again_has_its_own_rows_alone(
    ask: Ask, storage: frazil.Storage, mover: MoverHere
) -> None:
    send(storage, Signal.METRICS, [points(0), points(0)])
    mover.tick()
    storage.delete_topic(METRICS)
    send(storage, Signal.METRICS, [points(0)])
    assert {table: len(found) for table, found in all_places(ask).items()} == {
        "metrics": 4, "metrics_gauge": 2, "metrics_sum": 1, "metrics_histogram": 1
    }  # fmt: skip


def test_the_rows_of_a_topic_that_is_gone_are_those_of_its_tables(
    ask: Ask, storage: frazil.Storage, mover: MoverHere
) -> None:
    send(storage, Signal.METRICS, [points(0)])
    mover.tick()
    storage.delete_topic(METRICS)
    assert len(places(ask, "metrics_gauge")) == 2
