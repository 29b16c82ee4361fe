"""Retention removes a row only when every guard agrees, asked at that moment; one that can't answer keeps it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from tiers import publish

import frazil
from frazil import aio
from frazil.broker.admin import BrokerAdmin
from frazil.broker.broker import Broker
from frazil.broker.delivery.assignment import Kind
from frazil.core.clock import SystemClock
from frazil.core.disk import LocalDisk
from frazil.core.names import TopicName
from frazil.core.settings import Settings, make_settings
from frazil.iceberg import IcebergStorage, SubscriptionProgress
from frazil.log import maintenance as log_maintenance
from frazil.log.info import log_info, logs_from_files
from frazil.meta.opening import open_meta
from frazil.node.opening import open_to_move
from frazil.node.owner import open_source
from parts.movers import wait_until
from parts.moving import HandMover

TOPIC = "/shop/orders"
ROWS = 3_000
UNTIL_ACKED = {"max_file_size": 64 * 1024, "retention": {"until_acked": True}}


def lake(folder: Path, **sections: Any) -> Settings:
    """A data folder whose catalog and tables are elsewhere; without a cache, so that readers meet the files."""
    (folder / "lake").mkdir(exist_ok=True)
    where = {
        "catalog": {"uri": f"sqlite:///{folder}/lake/catalog.db"},
        "object_store": {"path": str(folder / "lake" / "warehouse")},
    }
    wal = {"max_file_size": 64 * 1024, "cache_capacity": 0, "retention": {"bytes": 1}}
    return make_settings({"data": folder / "data", "wal": wal, **where, **sections})


def alone(folder: Path) -> Settings:
    """The same folder, by someone who knows nothing of a lake."""
    return make_settings({"data": folder / "data", "wal": {"max_file_size": 64 * 1024, "retention": {"bytes": 1}}})


def first_offset(settings: Settings) -> int:
    (info,) = logs_from_files(LocalDisk(), settings.log_folder)[0]
    return info.first_offset


def readable(topic: frazil.Topic, start: int = 0) -> list[int]:
    return [message.offset for message in topic.read(start)]


def test_rows_go_up_to_what_the_table_has_and_no_further(tmp_path: Path) -> None:
    settings = lake(tmp_path)
    with frazil.open(settings) as storage:
        topic, mover = storage.topic(TOPIC), HandMover(settings)
        publish(topic, ROWS)
        storage.maintain()
        assert topic.log.first_offset == 0, "there is no table yet"
        mover.move(topic, 1_500)
        storage.maintain()
        assert 0 < topic.log.first_offset <= 1_500
        assert log_info(storage, TOPIC).dropped == ()
        assert readable(topic) == list(range(ROWS))
        assert storage.kept_by_guards() == []


def test_nothing_more_goes_once_the_table_is_dropped(tmp_path: Path) -> None:
    settings = lake(tmp_path)
    with frazil.open(settings) as storage:
        topic, mover = storage.topic(TOPIC), HandMover(settings)
        publish(topic, ROWS)
        mover.move(topic, 1_000)
        storage.maintain()
        first = topic.log.first_offset
        assert 0 < first <= 1_000
        mover.move(topic, ROWS)
        mover.catalog.drop_table(mover.name(topic).identifier)
        storage.maintain()
        assert topic.log.first_offset == first
        assert readable(topic, first) == list(range(first, ROWS))


def test_a_catalog_restored_from_a_backup_is_asked_not_the_one_before(tmp_path: Path) -> None:
    settings = lake(tmp_path)
    catalog = tmp_path / "lake" / "catalog.db"
    with frazil.open(settings) as storage:
        topic, mover = storage.topic(TOPIC), HandMover(settings)
        publish(topic, ROWS)
        mover.move(topic, 1_000)
        shutil.copy(catalog, tmp_path / "backup.db")
        storage.maintain()  # the catalog was asked once: a connection to it may be open
        mover.move(topic, ROWS)
        (tmp_path / "backup.db").replace(catalog)
        storage.maintain()
        assert 0 < topic.log.first_offset <= 1_000


def test_a_table_made_again_by_another_log_holds_nothing_of_this_one(tmp_path: Path) -> None:
    settings = lake(tmp_path)
    with frazil.open(settings) as storage:
        mover = HandMover(settings)
        publish(storage.topic(TOPIC), ROWS)
        mover.move(storage.topic(TOPIC))
        storage.delete_topic(TOPIC)
        publish(storage.topic(TOPIC), ROWS)
        storage.maintain()
        assert storage.topic(TOPIC).log.first_offset == 0


def test_a_catalog_that_is_away_keeps_rows_and_they_go_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = lake(tmp_path)
    warehouse = tmp_path / "lake" / "warehouse"
    with frazil.open(settings) as storage:
        topics = [storage.topic(name) for name in (TOPIC, "/shop/returns")]
        for topic in topics:
            publish(topic, ROWS)
            HandMover(settings).move(topic)
        warehouse.rename(tmp_path / "away")
        for _ in range(3):
            storage.maintain()
        assert [topic.log.first_offset for topic in topics] == [0, 0]
        kept = storage.kept_by_guards()
        assert [(one.topic, one.guard) for one in kept] == [(topic.name, "table") for topic in topics]
        assert all(one.message for one in kept)
        assert caplog.text.count(f"{TOPIC} is kept past its retention") == 1, "told once for a reason"
        (tmp_path / "away").rename(warehouse)
        storage.maintain()
        assert all(topic.log.first_offset > 0 for topic in topics)
        assert storage.kept_by_guards() == []


@pytest.mark.parametrize("section", ["catalog", "object_store"])
def test_a_table_in_memory_holds_nothing_that_may_go(
    tmp_path: Path, section: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = lake(tmp_path, **{section: {"type": "memory"}})
    with open_to_move(settings) as storage:
        assert f"{section}.type: memory" in caplog.text, "said at the start"
        publish(storage.topic(TOPIC), ROWS)
        storage.maintain()
        assert storage.topic(TOPIC).log.first_offset == 0
        (kept,) = storage.kept_by_guards()
        assert "memory" in kept.message


def test_a_folder_meant_to_be_moved_is_guarded_before_its_first_move_and_by_whoever_opens_it_later(
    tmp_path: Path,
) -> None:
    """As `frazil serve` does where Java is missing: no mover, no catalog, no status file."""
    with open_to_move(alone(tmp_path)) as storage:
        publish(storage.topic(TOPIC), ROWS)
        storage.maintain()
        assert storage.topic(TOPIC).log.first_offset == 0
    with frazil.open(alone(tmp_path)) as storage:
        storage.topic(TOPIC)
        storage.maintain()
        assert storage.topic(TOPIC).log.first_offset == 0
    assert not (tmp_path / "data" / "catalog.db").exists(), "whoever only looks makes no catalog"


def test_a_folder_that_was_never_moved_has_no_table_to_wait_for(tmp_path: Path) -> None:
    with frazil.open(alone(tmp_path)) as storage:
        publish(storage.topic(TOPIC), ROWS)
        storage.maintain()
        assert storage.topic(TOPIC).log.first_offset > 0
        assert len(log_info(storage, TOPIC).dropped) == 1


@pytest.mark.parametrize("others", ["a folder alone", "another catalog"])
def test_another_process_with_other_settings_keeps_what_its_own_catalog_cannot_speak_of(
    tmp_path: Path, others: str
) -> None:
    settings = lake(tmp_path)
    with open_to_move(settings) as storage:
        publish(storage.topic(TOPIC), ROWS)
        HandMover(settings).move(storage.topic(TOPIC), 1_000)
    other = alone(tmp_path)
    if others == "another catalog":  # which holds more of the same log, as one that was copied may
        shutil.copytree(tmp_path / "lake", tmp_path / "copy")
        other = lake(tmp_path, catalog={"uri": f"sqlite:///{tmp_path}/copy/catalog.db"})
    with frazil.open(other) as storage:
        storage.topic(TOPIC)
        storage.maintain()
        assert storage.topic(TOPIC).log.first_offset == 0
        (kept,) = storage.kept_by_guards()
        assert "lake/catalog.db" in kept.message
        assert "open the folder with the settings of its mover" in kept.message


def test_settings_that_name_a_topic_as_not_moved_have_no_table_to_wait_for(tmp_path: Path) -> None:
    settings = lake(tmp_path, topics={"/shop/*": {"enabled": False}})
    with open_to_move(settings) as storage:
        topics = [storage.topic(name) for name in (f"{TOPIC}-part-0", "/other/a")]
        for topic in topics:
            publish(topic, ROWS)
        storage.maintain()
        assert [topic.log.first_offset > 0 for topic in topics] == [True, False]


@pytest.mark.parametrize("since", [0, 500])
def test_a_log_restored_from_an_older_copy_keeps_everything_and_says_so(tmp_path: Path, since: int) -> None:
    """Also when it has grown past its table since: rows at the same offsets are others."""
    settings = lake(tmp_path)
    log, copy = settings.log_folder, tmp_path / "older"
    with frazil.open(settings) as storage:
        publish(storage.topic(TOPIC), ROWS - 100)
    shutil.copytree(log, copy)
    with frazil.open(settings) as storage:
        publish(storage.topic(TOPIC), 100)
        HandMover(settings).move(storage.topic(TOPIC))
    shutil.rmtree(log)
    copy.rename(log)
    with frazil.open(settings) as storage:
        publish(storage.topic(TOPIC), since)
        storage.maintain()
        assert storage.topic(TOPIC).log.first_offset == 0
        (kept,) = storage.kept_by_guards()
        assert kept.error["error"] == "table_ahead"
        assert (kept.error["table_end"], kept.error["log_end"]) == (ROWS, ROWS - 100 + since)


# --- a catalog that hangs


@contextlib.contextmanager
def hanging_server() -> Iterator[tuple[int, threading.Event]]:
    """Takes connections and never answers; the event tells that it was asked."""
    asked, ended = threading.Event(), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def take() -> None:
            taken = []
            with contextlib.suppress(OSError):
                while not ended.is_set():
                    taken.append(server.accept()[0])
                    asked.set()
            for one in taken:
                one.close()

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1], asked
        finally:
            ended.set()
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def test_a_catalog_that_hangs_holds_up_neither_publishing_nor_other_topics_nor_the_end(tmp_path: Path) -> None:
    with hanging_server() as (port, asked):
        catalog = {"type": "rest", "uri": f"http://127.0.0.1:{port}"}
        settings = lake(tmp_path, catalog=catalog, topics={"/free/*": {"enabled": False}})
        storage = frazil.open(settings)
        publish(storage.topic(TOPIC), ROWS)
        publish(storage.topic("/free/a"), ROWS)
        waiting = threading.Thread(target=storage.maintain)
        waiting.start()
        assert asked.wait(30)
        assert storage.topic(TOPIC).publish(b"goes on") == ROWS
        wait_until(lambda: storage.topic("/free/a").log.first_offset > 0)
        begun = time.monotonic()
        storage.close()
        assert time.monotonic() - begun < 5, "the end does not wait for the catalog"
        waiting.join(10)
        assert not waiting.is_alive()
    assert first_offset_of(settings, TOPIC) == 0


def first_offset_of(settings: Settings, name: str) -> int:
    infos = logs_from_files(LocalDisk(), settings.log_folder)[0]
    return next(info.first_offset for info in infos if info.topic == TopicName.parse(name))


# --- acknowledgements, where no broker runs


def acked(settings: Settings, end: int) -> None:
    """A subscription that a broker stored has acknowledged that much of what was published, and gone."""

    async def work(storage: frazil.Storage) -> None:
        meta = open_meta(settings)
        broker = Broker(storage, meta, settings.broker, SystemClock())
        await broker.start()
        await broker.create_producer(TOPIC, "p", reliable=True)
        await broker.subscribe(TOPIC, "s", Kind.SHARED, "c")
        await BrokerAdmin(broker).reset(TopicName.parse(TOPIC), "s", end)
        await broker.close()
        meta.close()

    with frazil.open(settings) as storage:
        publish(storage.topic(TOPIC), ROWS)
        asyncio.run(work(storage))


@contextlib.contextmanager
def by_aio(settings: Settings) -> Iterator[None]:
    async def opened() -> aio.Storage:
        storage = await aio.open(settings)
        await storage.topic(TOPIC)
        return storage

    with asyncio.Runner() as runner:
        storage = runner.run(opened())
        try:
            yield
        finally:
            runner.run(storage.close())


@contextlib.contextmanager
def by_pipeline_run(settings: Settings) -> Iterator[None]:
    with open_source(settings) as source:
        source.logs()
        yield


@contextlib.contextmanager
def by_iceberg_storage(settings: Settings) -> Iterator[None]:
    async def opened() -> IcebergStorage:
        storage = await IcebergStorage.create(settings, mover=False)
        await storage.initialize_topic(TOPIC)
        return storage

    with asyncio.Runner() as runner:
        storage = runner.run(opened())
        try:
            yield
        finally:
            runner.run(storage.shutdown())


@contextlib.contextmanager
def by_open(settings: Settings) -> Iterator[None]:
    with frazil.open(settings) as storage:
        storage.topic(TOPIC)
        yield


@pytest.mark.parametrize("opened", [by_open, by_aio, by_pipeline_run, by_iceberg_storage])
def test_what_is_not_acknowledged_stays_in_every_process_that_owns_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Callable[[Settings], AbstractContextManager[None]]
) -> None:
    settings = lake(tmp_path, wal=UNTIL_ACKED)
    acked(settings, 1_500)
    with frazil.open(settings) as storage:
        HandMover(settings).move(storage.topic(TOPIC))
    monkeypatch.setattr(log_maintenance, "INTERVAL_MS", 20)
    with opened(settings):
        wait_until(lambda: first_offset(settings) > 0)
    first = first_offset(settings)
    assert 0 < first <= 1_500
    with frazil.open(settings) as storage:
        storage.topic(TOPIC)
        storage.maintain()
    assert first_offset(settings) <= 1_500


def test_without_a_subscription_or_with_one_of_an_earlier_topic_nothing_goes(tmp_path: Path) -> None:
    settings = lake(
        tmp_path,
        wal={"max_file_size": 64 * 1024, "retention": {"until_acked": True}},
        topics={TOPIC: {"enabled": False}},
    )
    with frazil.open(settings) as storage:
        publish(storage.topic(TOPIC), ROWS)
        storage.maintain()
        assert storage.topic(TOPIC).log.first_offset == 0
        storage.delete_topic(TOPIC)
    acked(settings, ROWS)
    with frazil.open(settings) as storage:
        storage.delete_topic(TOPIC)  # not by the broker: its records stay
        publish(storage.topic(TOPIC), ROWS)
        storage.maintain()
        assert storage.topic(TOPIC).log.first_offset == 0


def test_progress_that_a_reader_saved_counts_as_an_acknowledgement(tmp_path: Path) -> None:
    settings = lake(
        tmp_path,
        wal={"max_file_size": 64 * 1024, "retention": {"until_acked": True}},
        topics={TOPIC: {"enabled": False}},
    )

    async def save() -> None:
        async with await IcebergStorage.create(settings, mover=False) as storage:
            for name, offset in (("fast", ROWS), ("slow", 1_500)):
                await storage.save_progress(name, TOPIC, SubscriptionProgress(offset))

    with frazil.open(settings) as storage:
        publish(storage.topic(TOPIC), ROWS)
    asyncio.run(save())
    with frazil.open(settings) as storage:
        storage.topic(TOPIC)
        storage.maintain()
    assert 0 < first_offset(settings) <= 1_500


def test_the_next_look_has_a_subscription_that_is_broken_keep_everything(tmp_path: Path) -> None:
    settings = lake(
        tmp_path,
        wal={"max_file_size": 64 * 1024, "retention": {"until_acked": True}},
        topics={TOPIC: {"enabled": False}},
    )
    acked(settings, ROWS)
    meta = open_meta(settings)
    (entry,) = meta.list("/persistent_storage/iceberg/subscriptions/s/")
    meta.put_if(entry.key, b"no json", entry.revision)
    meta.close()
    with frazil.open(settings) as storage:
        storage.topic(TOPIC)
        storage.maintain()
        (kept,) = storage.kept_by_guards()
        assert kept.guard == "subscriptions"
    assert first_offset(settings) == 0
