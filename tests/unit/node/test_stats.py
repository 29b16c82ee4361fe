"""The figures of a topic are what a reader from `earliest` gets, over log and table, and the same at each face."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from tiers import FLOOR, NAME, publish, remove_what_the_table_has

import frazil
import frazil.aio
from frazil.cli.main import main
from frazil.core.clock import SystemClock
from frazil.core.settings import RetentionSettings, Settings
from frazil.doors.flight.door import flight_door
from frazil.doors.http.door import make_app
from frazil.iceberg import IcebergStorage
from frazil.lake.read import history as lake_history
from frazil.lake.tables import look
from frazil.node.movers.lease import this_host
from frazil.node.movers.status_file import write_status
from frazil.node.node import Node
from parts.moving import HandMover

PASSING = {"lag_ms", "learnt_us", "bytes"}
READ = ("first_offset", "end", "messages")


def read_from_earliest(topic: frazil.Topic) -> tuple[int, int, int]:
    offsets = [message.offset for message in topic.read("earliest")]
    return offsets[0], offsets[-1] + 1, len(offsets)


def figures(told: dict[str, Any]) -> dict[str, Any]:
    """What all faces have in common, without what passes with time; an end of the log writes a mark of some bytes."""
    tiers = {
        name: {field: value for field, value in tier.items() if field not in PASSING}
        for name, tier in told["tiers"].items()
        if tier is not None
    }
    return {**{name: told[name] for name in READ}, "tiers": tiers}


def tell(settings: Settings, topic: frazil.Topic, end: int) -> None:
    told = {"log_id": topic.log.log_id, "table_end": end, "error": None}
    value = {"state": "running", "error": None, "topics": {topic.name: told}}
    write_status(settings, SystemClock(), this_host(), os.getpid(), value)


def http_get(storage: frazil.Storage, path: str) -> Any:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(make_app(Node(storage)))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.get(path)

    answer = asyncio.run(ask())
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_they_are_those_of_a_reader_from_earliest(topic: frazil.Topic) -> None:
    stats, first = topic.stats(), topic.log.first_offset
    assert (stats.first_offset, stats.end, stats.messages) == read_from_earliest(topic) == (0, 5_000, 5_000)
    log, table = stats.tiers.log, stats.tiers.table
    assert log is not None
    assert (log.first, log.end, log.rows, log.bytes, log.lag_rows, log.lag_ms) == (
        first, 5_000, 5_000 - first, stats.bytes, 0, 0,
    )  # fmt: skip
    assert table is not None
    assert (table.table, table.first, table.end, table.rows, table.lag_rows) == ("shop.orders", 0, 4_000, 4_000, 1_000)
    assert table.bytes
    assert table.snapshot_id
    assert table.error is None
    assert table.lag_ms is not None
    assert table.learnt_us is not None


def test_every_face_tells_the_same(
    storage: frazil.Storage, topic: frazil.Topic, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = figures(topic.stats().as_dict())

    async def awaited() -> frazil.TopicStats:
        return await frazil.aio.Topic(topic).stats()

    assert figures(asyncio.run(awaited()).as_dict()) == expected
    flight = settings.flight.model_copy(update={"port": 0})
    with flight_door(storage, flight) as door, frazil.connect(door.address) as remote:
        assert remote.topic(NAME).stats() == topic.stats()
    assert figures(http_get(storage, f"/v1/topics{NAME}")) == expected
    with frazil.open_read_only(settings) as node:
        alone = node.topic(NAME).stats()
        assert (alone.first_offset, alone.end, alone.messages) == read_from_earliest(node.topic(NAME))
        assert alone.tiers.log is None
        assert alone.tiers.table is not None
        told = alone.as_dict()
        told["tiers"].pop("log")
        assert figures(told)["tiers"] == {"table": {**expected["tiers"]["table"], "lag_rows": None}}
    storage.close()
    data = ["--data", str(settings.data)]
    assert main(["topics", "describe", NAME, *data, "--json"]) == 0
    assert figures(json.loads(capsys.readouterr().out)) == expected
    assert main(["topics", "describe", NAME, *data]) == 0
    shown = capsys.readouterr().out
    assert "4000 rows, offsets 0 up to 4000" in shown
    assert "1000 rows, the oldest for" in shown

    async def facade() -> dict[str, Any]:
        async with await IcebergStorage.create(settings, mover=False) as made:
            stats = await made.get_topic_stats(NAME)
            assert (stats.message_count, stats.log_end, stats.table_end) == (5_000, 5_000, 4_000)
            assert stats.as_dict()["snapshot_id"] == stats.snapshot_id
            return stats.as_dict()

    assert figures(asyncio.run(facade())) == expected


def test_what_was_dropped_before_there_was_a_table_is_not_counted(
    storage: frazil.Storage, settings: Settings, mover: HandMover
) -> None:
    topic = storage.topic(NAME)
    publish(topic, 2_000)
    storage.remove_guard(FLOOR)
    storage.set_retention(NAME, RetentionSettings(bytes=1))
    storage.maintain()
    dropped = topic.log.first_offset
    assert dropped > 0
    storage.set_retention(NAME, RetentionSettings())
    publish(topic, 1_000)
    before = topic.stats()
    assert (before.first_offset, before.messages) == (dropped, 3_000 - dropped)
    assert before.tiers.table is not None
    assert (before.tiers.table.end, before.tiers.table.rows, before.tiers.table.lag_rows) == (0, 0, 3_000 - dropped)
    mover.end(topic)
    table = mover.table(topic)
    assert table.current_snapshot() is not None
    assert topic.stats() == before, "a table that has nothing yet"


def test_rows_deleted_from_the_table_are_not_counted(topic: frazil.Topic, mover: HandMover) -> None:
    mover.table(topic).delete("_offset < 1000")
    stats = topic.stats()
    assert (stats.first_offset, stats.end, stats.messages) == (1_000, 5_000, 4_000)
    assert stats.tiers.table is not None
    assert (stats.tiers.table.first, stats.tiers.table.rows) == (1_000, 3_000)
    with pytest.raises(frazil.TableDamaged, match="offsets 0 up to 1000 are missing"):
        read_from_earliest(topic)


def test_the_files_of_a_whole_table_are_not_looked_at(topic: frazil.Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost does not grow with the history."""
    monkeypatch.setattr(lake_history, "plan_all", lambda *_: pytest.fail("the files were planned"))
    assert topic.stats().messages == 5_000


def test_a_catalog_that_is_away_leaves_what_the_mover_told_and_the_reason(
    topic: frazil.Topic, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> Any:
        raise frazil.LakeUnavailable("catalog", "nobody answers")

    monkeypatch.setattr(lake_history.TableHistory, "figures", away)
    first = topic.log.first_offset
    stats = topic.stats()
    assert (stats.first_offset, stats.messages) == (first, 5_000 - first)
    table = stats.tiers.table
    assert table is not None
    assert (table.end, table.rows, table.lag_rows, table.learnt_us) == (None, None, None, None)
    assert "nobody answers" in str(table.error)
    tell(settings, topic, 3_900)
    stats = topic.stats()
    assert (stats.first_offset, stats.messages) == (0, 5_000)
    table = stats.tiers.table
    assert table is not None
    assert (table.first, table.end, table.rows, table.lag_rows) == (0, 3_900, 3_900, 1_100)
    assert table.learnt_us is not None
    assert "nobody answers" in str(table.error)


def test_a_catalog_that_hangs_is_not_waited_for(topic: frazil.Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = threading.Event()
    monkeypatch.setattr(lake_history.TableHistory, "figures", lambda _: let_go.wait(60) and None)
    monkeypatch.setattr(look.in_time, "__defaults__", (0.01,))
    try:
        table = topic.stats().tiers.table
        assert table is not None
        assert "no answer within" in str(table.error)
        assert topic.publish(b"tea") == 5_000
    finally:
        let_go.set()


def test_lists_count_the_same_by_what_the_mover_told(
    storage: frazil.Storage, topic: frazil.Topic, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(settings, topic, 4_000)
    (served,) = http_get(storage, "/v1/topics")["items"]
    assert [served[name] for name in READ] == [0, 5_000, 5_000]
    storage.close()
    assert main(["topics", "list", "--data", str(settings.data), "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert [listed[name] for name in READ] == [0, 5_000, 5_000]


def test_what_goes_with_a_topic_are_the_rows_of_its_log(storage: frazil.Storage, topic: frazil.Topic) -> None:
    rows = 5_000 - topic.log.first_offset

    async def ask() -> Any:
        transport = httpx.ASGITransport(make_app(Node(storage)))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return (await client.delete(f"/v1/topics{NAME}")).json()

    assert asyncio.run(ask()) == {"topic": NAME, "deleted": True, "messages": rows}


def test_a_topic_in_memory_or_one_that_is_not_moved_has_no_table(tmp_path: Path) -> None:
    with frazil.open(None) as storage:
        storage.topic(NAME).publish(b"tea")
        assert storage.topic(NAME).stats().tiers.table is None
    with frazil.open({"data": tmp_path, "topics": {NAME: {"enabled": False}}}) as storage:
        storage.topic(NAME).publish(b"tea")
        stats = storage.topic(NAME).stats()
        assert (stats.messages, stats.tiers.table) == (1, None)


def test_all_moved_and_removed_is_read_from_the_table(
    storage: frazil.Storage, topic: frazil.Topic, mover: HandMover
) -> None:
    mover.move(topic)
    remove_what_the_table_has(storage, topic, 5_000)
    stats = topic.stats()
    assert topic.log.first_offset > 4_000
    assert (stats.first_offset, stats.end, stats.messages) == read_from_earliest(topic) == (0, 5_000, 5_000)
    assert stats.tiers.table is not None
    assert (stats.tiers.table.lag_rows, stats.tiers.table.lag_ms) == (0, 0)
