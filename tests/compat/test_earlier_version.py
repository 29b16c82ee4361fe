"""A data folder, a metadata store and tables that an earlier version made open, are proven, and go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from observed import command, plain, rows_of, sections, served_state, serving, topic_rows
from unpacking import VERSIONS, expected_of, unpack

import frazil
from frazil.core.clock import SystemClock
from parts.in_process import MoverHere

ORDERS, PRICES, LEDGER, TORN = "/shop/orders", "/shop/prices", "/shop/ledger", "/ops/torn"
WIDE = pa.schema([("item", pa.string()), ("cents", pa.int64()), ("tags", pa.list_(pa.string()))])


@pytest.fixture(params=VERSIONS, ids=lambda path: path.name)
def version(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


@pytest.fixture
def folder(version: Path, tmp_path: Path) -> Path:
    return unpack(version, tmp_path)


@pytest.fixture
def expected(version: Path) -> dict[str, Any]:
    return expected_of(version)


@pytest.fixture
def settings(folder: Path) -> frazil.Settings:
    return frazil.Settings.model_validate(sections(folder))


def move(settings: frazil.Settings, storage: frazil.Storage) -> None:
    report = MoverHere(settings, storage, clock=SystemClock()).tick()
    assert report.failures == 0, report


def test_there_is_a_fixture() -> None:
    assert VERSIONS


def test_every_row_is_read_as_it_was(settings: frazil.Settings, expected: dict[str, Any]) -> None:
    with frazil.open(settings) as storage:
        assert rows_of(storage) == expected["rows"]
        assert {name: storage.topic(name).stats().first_offset for name in storage.topics()} == expected["first"]
        assert storage.topic(TORN).stats().torn_tail is not None, "the fixture has a torn tail, which is cut"
    with frazil.open(settings) as storage:
        assert rows_of(storage) == expected["rows"]


def test_a_numbered_batch_that_is_sent_again_is_stored_once(
    settings: frazil.Settings, expected: dict[str, Any]
) -> None:
    epoch, next_sequence = expected["producers"]["till 1"]
    with frazil.open(settings) as storage:
        orders = storage.topic(ORDERS)
        state = orders.open_producer("till 1", client="till")
        assert (state.epoch, state.next_sequence) == (epoch, next_sequence)
        end = orders.stats().end
        again = orders.publish_many(["milk", "rice"], sent=frazil.Sent("till 1", epoch, next_sequence - 2))
        assert [plain(b"milk"), plain(b"rice")] == [
            row["_payload"] for row in expected["rows"][ORDERS] if row["_offset"] in range(again.start, again.end)
        ]
        assert orders.stats().end == end
        assert orders.publish_many(["bread"], sent=frazil.Sent("till 1", epoch, next_sequence)).start == end


def test_verify_proves_what_it_proved(folder: Path, expected: dict[str, Any]) -> None:
    proof = command(folder, "verify")
    assert proof["proven"]
    for found in proof["topics"]:
        before = expected["proof"][found["topic"]]
        assert {name: found[name] for name in before} == before


def test_a_server_knows_schemas_and_policies_and_subscriptions_go_on(folder: Path, expected: dict[str, Any]) -> None:
    with serving(folder) as doors, frazil.connect(doors["flight"]) as storage:
        assert served_state(doors["http"]) == expected["served"]
        topic = storage.topic(ORDERS)
        with topic.subscribe("cooks", kind="shared", consumer="kitchen") as cooks:
            taken = {message.offset: plain(message.payload) for message in (next(cooks) for _ in range(3))}
        rows = {row["_offset"]: row["_payload"] for row in expected["rows"][ORDERS]}
        assert taken == {offset: rows[offset] for offset in (12, 14, 15)}, "10, 11 and 13 were acknowledged"
        with topic.subscribe("strict", kind="exclusive", consumer="judge") as strict:
            offset = topic.publish("new")
            assert next(strict).offset == offset
        with httpx.Client(base_url=doors["http"], timeout=30) as http:
            body = {"schema_type": "avro", "definition": '{"type": "string"}'}
            refused = http.post("/v1/schemas/order/versions", json=body)
            assert refused.status_code == httpx.codes.CONFLICT, "its mode is full"


def test_publishing_and_moving_go_on(folder: Path, settings: frazil.Settings, expected: dict[str, Any]) -> None:
    with frazil.open(settings) as storage:
        move(settings, storage)
        for name in (ORDERS, LEDGER, TORN):
            storage.topic(name).publish("new")
        storage.topic(PRICES).publish_many(pa.record_batch([["oil"], pa.array([2**41]), [["food"]]], schema=WIDE))
        move(settings, storage)
        ends = {name: storage.topic(name).stats().end for name in storage.topics()}
    proof = command(folder, "verify")
    assert proof["proven"], proof
    assert {one["topic"]: one["in_table"] for one in proof["topics"]} == ends
    with frazil.open(settings) as storage:
        found = rows_of(storage)
        for name, before in expected["rows"].items():
            assert found[name][: len(before)] == before
        assert [len(found[name]) - len(before) for name, before in expected["rows"].items()].count(1) == 4


def test_the_status_that_a_mover_left_is_read(folder: Path, expected: dict[str, Any]) -> None:
    status = command(folder, "pipeline", "status")
    proof = expected["proof"]
    found = {one["topic"]: (one["log_end"], one["table_end"] or 0) for one in status["topics"]}
    assert found == {name: (one["end"], one["in_table"]) for name, one in proof.items()}


def test_read_only_and_sql_see_the_table(folder: Path, expected: dict[str, Any]) -> None:
    with frazil.open_read_only({**sections(folder), "data": None}) as node:
        rows = topic_rows(node.topic(ORDERS))
        assert rows == expected["rows"][ORDERS][: len(rows)]
        assert len(rows) == expected["proof"][ORDERS]["in_table"]
    query = "select count(*) as n, sum(_offset) as s from shop.orders"
    count = len(expected["rows"][ORDERS])
    assert command(folder, "sql", query) == {"n": count, "s": str(sum(range(count)))}
