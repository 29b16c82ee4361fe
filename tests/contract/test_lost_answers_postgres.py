"""A catalog on PostgreSQL whose answers are lost before or after they take effect: each row once, and nobody stuck."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from lakes import Lake

import frazil
from frazil.core.settings import Settings, make_settings
from frazil.lake.catalogs.postgres import LOCK_WAIT_MS_MAX
from parts.in_process import MoverHere
from parts.postgres import ESCAPED, USER, Postgres
from parts.postgres_proxy import COMMIT, FAULTS, PostgresProxy, postgres_proxy
from parts.processes import pause

TOPIC = "/shop/orders"
SCHEMA = pa.schema([("amount", pa.int64())])
WIDER = pa.schema([("amount", pa.int64()), ("note", pa.string())])
ANSWER_S, IDLE_MS = 0.6, 300


@pytest.fixture
def proxy(postgres_server: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresProxy]:
    monkeypatch.setattr("frazil.lake.catalogs.postgres.ANSWER_S_MAX", ANSWER_S)
    monkeypatch.setattr("frazil.lake.catalogs.postgres.IDLE_IN_TRANSACTION_MS_MAX", IDLE_MS)
    with postgres_proxy(postgres_server.port) as proxy:
        yield proxy


@pytest.fixture
def settings(proxy: PostgresProxy, lake_settings: Callable[[str], Settings]) -> Settings:
    """The lake behind the proxy."""
    return behind(lake_settings("postgres"), proxy.port)


def behind(settings: Settings, port: int) -> Settings:
    uri = f"postgresql+psycopg2://{USER}:{ESCAPED}@127.0.0.1:{port}/postgres"
    assert settings.data is not None
    return make_settings({"data": settings.data, "catalog": {"uri": uri, "name": settings.catalog.name}})


@pytest.mark.parametrize("fault", FAULTS)
def test_a_commit_whose_answer_is_lost_lands_once(settings: Settings, proxy: PostgresProxy, fault: str) -> None:
    lake = Lake("postgres", settings)
    lake.move(0, 5)
    moved = lake.written(5, 10)
    proxy.fail(COMMIT, dict.fromkeys(range(2), fault))
    assert lake.commit(moved).mine == (moved,)
    assert proxy.met == (1 if fault in ("cut after", "silent after") else 2)
    assert lake.exists(moved)
    assert lake.offsets() == list(range(10))


@pytest.mark.parametrize(
    ("trigger", "fault"),
    [
        *((COMMIT, fault) for fault in FAULTS),
        *itertools.product((b"SELECT", b"UPDATE", b"INSERT"), ("cut after", "silent before")),
    ],
)
def test_a_mover_goes_on_by_itself_whichever_answer_is_lost(
    settings: Settings, proxy: PostgresProxy, trigger: bytes, fault: str
) -> None:
    """From the first move, which makes the namespace and the table, over one that adds a column, to a plain one."""
    with frazil.open(settings) as storage:
        storage.create_topic(TOPIC, schema=SCHEMA)
        here = MoverHere(settings, storage)
        number = itertools.count()
        proxy.fail(trigger, dict.fromkeys((0, 1, 3, 6, 10), fault))
        for schema in (SCHEMA, WIDER, WIDER):
            if schema is not storage.topic(TOPIC).schema:
                storage.change_schema(TOPIC, schema)
            rows = pa.RecordBatch.from_pylist([{"amount": next(number)} for _ in range(3)], schema=schema)
            storage.topic(TOPIC).publish_many(rows)
            drained(here)
        assert proxy.met
        proxy.fail(trigger, {})
        assert here.errors() == {TOPIC: None}
        assert [row["amount"] for row in here.rows(TOPIC, "amount")] == list(range(9))


def drained(here: MoverHere) -> None:
    """All rows are in the table after a few ticks, whatever the first of them came to."""
    for _ in range(8):
        state = here.tick().topics[TOPIC]
        if state.table_end == state.log_end and state.error is None:
            return
    raise AssertionError(state)


def test_a_client_that_stops_before_its_commit_does_not_hold_up_another(
    settings: Settings, proxy: PostgresProxy, postgres_server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its change is made and not committed, which locks the table's row: the server ends its session."""
    monkeypatch.setattr("frazil.lake.catalogs.postgres.ANSWER_S_MAX", 600)
    lake = Lake("postgres", settings)
    lake.move(0, 5)
    other = Lake("postgres", behind(settings, postgres_server.port), lake.name, lake.log_id)
    mine, theirs = lake.written(5, 10), other.written(5, 8)
    proxy.fail(COMMIT, {0: "silent before"})
    with ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(lake.commit, mine)
        while not proxy.met:
            assert not stopped.done()
            pause(0.02)
        try:
            started = time.monotonic()
            assert other.commit(theirs).mine == (theirs,)
            assert time.monotonic() - started < LOCK_WAIT_MS_MAX / 1_000
            assert not stopped.done()
        finally:
            proxy.cut_now()
        assert stopped.result(60).others == (mine,)
    assert lake.offsets() == list(range(8))
    other.catalog.engine.dispose()
