"""A log that has gone back behind its table, by a repair or an older copy of the folder, is not moved on silently.

Rows published since have offsets that the table has for other rows. Nothing of such a topic may be moved or removed,
whether or not the log has grown past the table again; the other topics go on.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import frazil
from frazil.cli.doctor import LOOKS
from frazil.core.clock import SystemClock
from frazil.core.credentials import NO_CREDENTIALS
from frazil.core.settings import Settings, make_settings
from frazil.lake.catalogs.opening import catalog_properties, open_catalog
from frazil.lake.tables.store import TableStore
from frazil.log.info import LogInfo
from frazil.log.repair.repair import repair
from frazil.node.health.readiness import BehindTheirTables
from frazil.node.movers.log_source import OwnLogs
from frazil.node.movers.status import pipeline_status
from frazil.node.movers.status_file import StatusFile, write_status
from frazil.node.movers.table_progress import StatusReader
from frazil.node.movers.tick_report import TickReport
from frazil.pipeline.move.mover import Mover
from frazil.testing import FakeClock
from frazil.testing.jobs import InProcessJobs

ORDERS, RETURNS = "/shop/orders", "/shop/returns"
OLD = [f"old {number}".encode() for number in range(10)]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    lake = tmp_path / "lake"
    lake.mkdir()
    catalog = {"uri": f"sqlite:///{lake}/catalog.db"}
    return make_settings({"data": tmp_path / "data", "catalog": catalog, "object_store": {"path": lake / "warehouse"}})


class Source:
    """Logs of a storage that may be another by the next tick, as with an owner that was started anew."""

    address = None
    credentials = NO_CREDENTIALS

    def __init__(self, storage: frazil.Storage) -> None:
        self.storage = storage

    def logs(self) -> list[LogInfo]:
        return OwnLogs(self.storage).logs()


def mover_of(settings: Settings, source: Source) -> Mover:
    properties = catalog_properties(settings)
    tables = TableStore(open_catalog(settings), properties.get("warehouse"), properties)
    return Mover(settings, source, tables, InProcessJobs(), FakeClock(), lambda _: None)


def tick(settings: Settings, storage: frazil.Storage) -> TickReport:
    """Of a mover that has just started; it tells of it as movers do."""
    report = mover_of(settings, Source(storage)).tick(all_of_it=True)
    clock = SystemClock()
    StatusFile(lambda told: write_status(settings, clock, "here", 1, told), clock).ticked(report)
    return report


def payloads(settings: Settings, table: str = "orders") -> list[bytes]:
    rows = open_catalog(settings).load_table(("shop", table)).scan().to_arrow().sort_by("_offset")
    found: list[bytes] = rows["_payload"].to_pylist()
    return found


def moved(settings: Settings) -> None:
    with frazil.open(settings) as storage:
        for payload in OLD:
            storage.topic(ORDERS).publish(payload)
        storage.topic(RETURNS).publish(b"one")
        assert tick(settings, storage).failures == 0


def repaired(settings: Settings) -> None:
    """The log ends at offset 5, its table at 10."""
    moved(settings)
    (segment,) = (settings.log_folder / "shop" / "orders").glob("*.wal")
    content = bytearray(segment.read_bytes())
    content[content.index(b"old 5")] ^= 0xFF
    segment.write_bytes(content)
    assert repair(settings, ORDERS).plan.end == 5


def restored(settings: Settings, tmp_path: Path) -> None:
    """The whole folder is put back from a copy that was made when the log ended at offset 5; the lake is elsewhere."""
    assert settings.data is not None
    with frazil.open(settings) as storage:
        for payload in OLD[:5]:
            storage.topic(ORDERS).publish(payload)
    shutil.copytree(settings.data, tmp_path / "copy")
    with frazil.open(settings) as storage:
        for payload in OLD[5:]:
            storage.topic(ORDERS).publish(payload)
        assert tick(settings, storage).failures == 0
    shutil.rmtree(settings.data)
    shutil.copytree(tmp_path / "copy", settings.data)


@pytest.mark.parametrize("new", [0, 3, 5, 8])
def test_a_repaired_log_behind_its_table_is_not_moved_and_the_others_are(settings: Settings, new: int) -> None:
    repaired(settings)
    with frazil.open(settings) as storage:
        for number in range(new):
            storage.topic(ORDERS).publish(f"new {number}")
        storage.topic(RETURNS).publish(b"two")
        report = tick(settings, storage)
    state = report.topics[ORDERS]
    assert state.error_code == "table_ahead"
    assert state.error is not None
    assert f"frazil log renumber {ORDERS}" in state.error
    assert payloads(settings) == OLD
    assert payloads(settings, "returns") == [b"one", b"two"]


@pytest.mark.parametrize("new", [0, 3, 5, 8])
def test_a_folder_restored_from_an_older_copy_is_not_moved_on(settings: Settings, tmp_path: Path, new: int) -> None:
    restored(settings, tmp_path)
    with frazil.open(settings) as storage:
        for number in range(new):
            storage.topic(ORDERS).publish(f"new {number}")
        report = tick(settings, storage)
    assert report.topics[ORDERS].error_code == "table_ahead"
    assert payloads(settings) == OLD


def test_a_mover_that_outlives_the_owner_looks_again(settings: Settings, tmp_path: Path) -> None:
    """It has seen the log whole; the next owner opens one that was restored and has grown past the table since."""
    assert settings.data is not None
    with frazil.open(settings) as storage:
        storage.topic(ORDERS).publish_many(OLD[:5])
    shutil.copytree(settings.data, tmp_path / "copy")
    with frazil.open(settings) as storage:
        source = Source(storage)
        mover = mover_of(settings, source)
        storage.topic(ORDERS).publish_many(OLD[5:])
        assert mover.tick(all_of_it=True).rows == 10
        assert mover.tick(all_of_it=True).failures == 0
    shutil.rmtree(settings.data)
    shutil.copytree(tmp_path / "copy", settings.data)
    with frazil.open(settings) as storage:
        source.storage = storage
        storage.topic(ORDERS).publish_many([b"new"] * 8)
        assert mover.tick(all_of_it=True).topics[ORDERS].error_code == "table_ahead"
    assert payloads(settings) == OLD


@pytest.mark.parametrize("recorded", [True, False])
def test_a_log_that_goes_on_is_moved_on(settings: Settings, recorded: bool) -> None:
    """After a restart of all, and also where an older mover recorded nothing of the last row."""
    moved(settings)
    if not recorded:
        table = open_catalog(settings).load_table(("shop", "orders"))
        (name,) = (name for name in table.properties if name.endswith(".last"))
        with table.transaction() as change:
            change.remove_properties(name)
    with frazil.open(settings) as storage:
        storage.topic(ORDERS).publish(b"new")
        report = tick(settings, storage)
    assert report.failures == 0
    assert payloads(settings) == [*OLD, b"new"]


def test_an_idle_log_is_looked_at_once_for_each_time_that_it_is_opened(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved(settings)
    looked: list[int] = []
    row = Mover._row
    monkeypatch.setattr(Mover, "_row", lambda *asked: looked.append(asked[2]) or row(*asked))
    with frazil.open(settings) as storage:
        storage.topic(ORDERS)
        source = Source(storage)
        mover = mover_of(settings, source)
        for _ in range(3):
            mover.tick()
        assert len(looked) == len(source.logs())
    with frazil.open(settings) as storage:
        source.storage = storage
        for _ in range(3):
            mover.tick()
        assert len(looked) == 2 * len(source.logs())


def test_a_log_that_went_back_is_seen_where_an_older_mover_recorded_nothing(settings: Settings) -> None:
    repaired(settings)
    table = open_catalog(settings).load_table(("shop", "orders"))
    (name,) = (name for name in table.properties if name.endswith(".last"))
    with table.transaction() as change:
        change.remove_properties(name)
    with frazil.open(settings) as storage:
        storage.topic(ORDERS).publish_many([b"new"] * 8)
        assert tick(settings, storage).topics[ORDERS].error_code == "table_ahead"


def test_columns_that_come_later_or_become_wider_are_no_other_row(settings: Settings) -> None:
    narrow = pa.schema([pa.field("count", pa.int32()), pa.field("where", pa.struct([pa.field("city", pa.string())]))])

    wide = pa.schema(
        [
            pa.field("count", pa.int64()),
            pa.field("where", pa.struct([pa.field("city", pa.string())])),
            pa.field("note", pa.string()),
        ]
    )
    row = {"count": 1, "where": {"city": "Oslo"}}
    with frazil.open(settings) as storage:
        topic = storage.topic("/shop/counts", schema=narrow)
        topic.publish_many(pa.RecordBatch.from_pylist([row], schema=narrow))
        assert tick(settings, storage).failures == 0
    with frazil.open(settings) as storage:
        storage.change_schema("/shop/counts", wide)
        storage.topic("/shop/counts").publish_many(pa.RecordBatch.from_pylist([row], schema=wide))
        report = tick(settings, storage)
        assert (report.rows, report.failures) == (1, 0)


def test_status_readiness_and_doctor_say_so(settings: Settings) -> None:
    repaired(settings)
    (topic,) = (one for one in pipeline_status(settings, SystemClock()).topics if one.topic == ORDERS)
    assert topic.last_error is not None
    assert "but the log ends at 5" in topic.last_error
    (finding,) = (look(settings) for look in LOOKS if look.__name__ == "_tables")
    assert (finding.state, "shop.orders has offsets" in finding.text) == ("fail", True)
    with frazil.open(settings) as storage:
        behind = BehindTheirTables(storage, StatusReader(settings))
        storage.topic(ORDERS)
        assert [(reason["topic"], reason["error"]) for reason in behind()] == [(ORDERS, "table_ahead")]
        storage.topic(ORDERS).publish_many([b"new"] * 8)  # past the table: now only the mover sees it
        tick(settings, storage)
        assert [(reason["topic"], reason["error"]) for reason in behind()] == [(ORDERS, "table_ahead")]
        (finding,) = (look(settings) for look in LOOKS if look.__name__ == "_tables")
        assert finding.state == "fail"


def test_a_renamed_table_keeps_its_rows_and_the_log_gets_another(settings: Settings) -> None:
    """The documented way to keep both."""
    repaired(settings)
    new = [f"new {number}".encode() for number in range(8)]
    with frazil.open(settings) as storage:
        storage.topic(ORDERS).publish_many(new)
        assert tick(settings, storage).topics[ORDERS].error_code == "table_ahead"
        open_catalog(settings).rename_table(("shop", "orders"), ("shop", "orders_before"))
        assert tick(settings, storage).failures == 0
    assert payloads(settings, "orders_before") == OLD
    assert payloads(settings) == [*OLD[:5], *new]
