"""SQL over tables of telemetry: requests that are not moved are rows as soon as they are acknowledged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import frazil
from frazil.core.errors import InvalidInput
from frazil.core.settings import Settings
from frazil.lake.tables.schema import TableName
from frazil.node.query.readable import Readable, everything
from frazil.node.query.session import SqlSession
from frazil.node.telemetry.opening import stored_tenants
from frazil.node.tiers.logs import FileView
from frazil.telemetry.signals import Signal
from parts.telemetry import metrics, records, send, span, spans, trace

Ask = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def ask(settings: Settings) -> Ask:
    def run(query: str, may_read: Readable = everything) -> list[tuple[Any, ...]]:
        with SqlSession(settings, FileView(settings), confined=True, may_read=may_read) as session:
            return [tuple(row.values()) for batch in session.run(query).batches for row in batch.to_pylist()]

    return run


@pytest.fixture
def sent(storage: frazil.Storage) -> frazil.Storage:
    send(storage, Signal.TRACES, [spans("shop", {"trace": trace(1), "id": span(1), "name": "buy"}) for _ in range(3)])
    send(storage, Signal.LOGS, [records("shop", {"body": "sold out", "severity": 17}), b"\xff\xff"])
    request, scope = metrics("shop")
    scope.metrics.add(name="load").gauge.data_points.add(as_double=0.5)
    scope.metrics.add(name="sold").sum.data_points.add(as_int=7)
    send(storage, Signal.METRICS, [request.SerializeToString()])
    return storage


def test_requests_are_rows_of_all_their_tables(ask: Ask, sent: frazil.Storage) -> None:
    assert ask('select span_name, count(*) from "acme.default".traces group by all') == [("buy", 3)]
    assert ask("select severity_number, body, service_name from acme.default.logs") == [(17, "sold out", "shop")]
    assert ask("select metric_name, value from acme.default.metrics_gauge") == [("load", 0.5)]
    assert ask("select metric_name, value_int from acme.default.metrics_sum") == [("sold", 7)]
    assert ask("select metric_name from acme.default.metrics order by 1") == [("load",), ("sold",)]
    assert ask("select count(*) from acme.default.metrics_summary") == [(0,)]
    assert ask("select _offset, _index, raw from acme.default.logs__errors") == [(1, None, b"\xff\xff")]
    assert ask("select count(*) from acme.default.traces__errors") == [(0,)]


def test_a_name_has_two_or_three_parts_in_one_query(ask: Ask, sent: frazil.Storage) -> None:
    joined = 'from acme.default.traces t join "acme.default".logs l using (service_name)'
    assert ask(f"select count(*) {joined}") == [(3,)]
    assert ask("with logs as (select 1 as one) select count(*) from logs, acme.default.logs") == [(1,)]
    with pytest.raises(InvalidInput, match=r"no topic or table acme\.default\.nothing"):
        ask("select * from acme.default.nothing")
    with pytest.raises(InvalidInput, match=r"no topic or table acme\.other\.traces"):
        ask("select * from acme.other.traces")


def test_topics_without_requests_keep_such_names(ask: Ask, storage: frazil.Storage) -> None:
    storage.topic("/shop/traces").publish("a footprint")
    storage.topic("/shop/metrics_gauge").publish("12 mm")
    assert ask("select decode(_payload) from shop.traces") == [("a footprint",)]
    assert ask("select decode(_payload) from shop.metrics_gauge") == [("12 mm",)]


def test_many_requests_are_decoded_in_pieces(ask: Ask, storage: frazil.Storage) -> None:
    one = spans("shop", *({"trace": trace(1), "id": span(number), "name": "x" * 200} for number in range(1_000)))
    send(storage, Signal.TRACES, [one] * 40)
    query = "select count(*), count(distinct (_offset, _index)), max(_offset) from acme.default.traces"
    assert ask(query) == [(40_000, 40_000, 39)]


def test_lifted_attributes_are_columns(ask: Ask, settings: Settings, storage: frazil.Storage) -> None:
    given = {"trace": trace(1), "id": span(1), "attributes": {"http.status": 404}}
    send(storage, Signal.TRACES, [spans("shop", given)])
    lifted = [{"source": "item", "key": "http.status", "column": "status", "type": "int64"}]
    with stored_tenants(settings) as tenants:
        tenants.create("acme", {"lifted": lifted}, with_key=False)
    assert ask("select status from acme.default.traces") == [(404,)]


def without(*hidden: str) -> Readable:
    return lambda table: str(table) not in hidden


def test_a_hidden_table_looks_as_a_missing_one(ask: Ask, sent: frazil.Storage) -> None:
    def refusal(query: str, may_read: Readable) -> str:
        with pytest.raises(InvalidInput) as refused:
            ask(query, may_read)
        return refused.value.message

    for table in ("traces", "metrics_gauge", "logs__errors"):
        for name in ("{0}.default." + table, '"{0}.default".' + table):
            query = f"select * from {name}"
            missing = refusal(query.format("nobody"), everything)
            found = refusal(query.format("acme"), lambda table: not table.namespace.startswith("acme."))
            assert found == missing.replace("nobody", "acme")


def test_a_table_needs_the_right_to_read_its_topic(ask: Ask, sent: frazil.Storage) -> None:
    query = "select count(*) from acme.default.metrics_gauge"
    assert ask(query, without("acme.default.metrics_sum")) == [(1,)]
    for hidden in ("acme.default.metrics", "acme.default.metrics_gauge"):
        with pytest.raises(InvalidInput, match=r"no topic or table acme\.default\.metrics_gauge"):
            ask(query, without(hidden))


def test_only_the_tables_of_a_query_are_looked_up(ask: Ask, sent: frazil.Storage) -> None:
    asked: list[TableName] = []

    def note(table: TableName) -> bool:
        asked.append(table)
        return True

    ask("select count(*) from acme.default.metrics_sum", note)
    assert {str(one) for one in asked} == {"acme.default.metrics_sum", "acme.default.metrics"}
