"""A topic whose log went back behind its table, and what must be true of it once it is renumbered. No JVM."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import frazil
from frazil.core.credentials import NO_CREDENTIALS
from frazil.core.settings import Settings, make_settings
from frazil.lake.catalogs.opening import catalog_properties, open_catalog
from frazil.lake.tables.store import TableStore
from frazil.log.info import LogInfo
from frazil.log.repair.repair import repair
from frazil.node.movers.log_source import OwnLogs
from frazil.node.query.session import SqlSession
from frazil.node.tiers.logs import FileView
from frazil.node.verify.proofs import prove
from frazil.node.verify.verify import TopicProof
from frazil.pipeline.move.mover import Mover, TickReport
from frazil.testing import FakeClock
from frazil.testing.jobs import InProcessJobs

ORDERS = "/shop/orders"
OLD = [f"old {number}".encode() for number in range(10)]
"""All of them are in the table; the log has lost those from offset 5 on."""
NEW = [f"new {number}".encode() for number in range(8)]
"""Published to the log that lost rows; by then it has the offsets of those again."""


def settings_in(folder: Path) -> Settings:
    """With a lake that is not in the data folder, so that the folder can be restored alone."""
    lake = folder / "lake"
    lake.mkdir(parents=True, exist_ok=True)
    catalog = {"uri": f"sqlite:///{lake}/catalog.db"}
    return make_settings({"data": folder / "data", "catalog": catalog, "object_store": {"path": lake / "warehouse"}})


def log_id(settings: Settings) -> str:
    with frazil.open(settings) as storage:
        return storage.topic(ORDERS, create=False).log.log_id


class _Source:
    address = None
    credentials = NO_CREDENTIALS

    def __init__(self, storage: frazil.Storage) -> None:
        self._storage = storage

    def logs(self) -> list[LogInfo]:
        return OwnLogs(self._storage).logs()


def tick(settings: Settings, storage: frazil.Storage) -> TickReport:
    """Of a mover that has just started."""
    properties = catalog_properties(settings)
    tables = TableStore(open_catalog(settings), properties.get("warehouse"), properties)
    return Mover(settings, _Source(storage), tables, InProcessJobs(), FakeClock(), lambda _: None).tick(all_of_it=True)


def publish(settings: Settings, payloads: Sequence[bytes]) -> None:
    with frazil.open(settings) as storage:
        for payload in payloads:
            storage.topic(ORDERS).publish(payload)


def damaged(settings: Settings) -> None:
    """All is moved, and a byte of the log rots at offset 5."""
    with frazil.open(settings) as storage:
        for payload in OLD:
            storage.topic(ORDERS).publish(payload)
        assert tick(settings, storage).failures == 0
    (segment,) = (settings.log_folder / "shop" / "orders").glob("*.wal")
    content = bytearray(segment.read_bytes())
    content[content.index(b"old 5")] ^= 0xFF
    segment.write_bytes(content)


def repaired(settings: Settings, new: Sequence[bytes]) -> None:
    """A repair cut the log at offset 5."""
    damaged(settings)
    assert repair(settings, ORDERS).plan.end == 5
    publish(settings, new)


def restored(settings: Settings, new: Sequence[bytes]) -> None:
    """The folder was put back from a copy of when the log ended at offset 5."""
    assert settings.data is not None
    copy = settings.data.with_name("copy")
    publish(settings, OLD[:5])
    shutil.copytree(settings.data, copy)
    with frazil.open(settings) as storage:
        for payload in OLD[5:]:
            storage.topic(ORDERS).publish(payload)
        assert tick(settings, storage).failures == 0
    shutil.rmtree(settings.data)
    shutil.copytree(copy, settings.data)
    publish(settings, new)


def in_table(settings: Settings) -> list[tuple[int, bytes]]:
    rows = open_catalog(settings).load_table(("shop", "orders")).scan().to_arrow().sort_by("_offset")
    return list(zip(rows["_offset"].to_pylist(), rows["_payload"].to_pylist(), strict=True))


def by_sql(settings: Settings) -> list[tuple[int, bytes]]:
    with SqlSession(settings, FileView(settings), None) as session:
        found = session.run("select _offset, _payload from shop.orders order by 1").batches
        return [(row["_offset"], row["_payload"]) for batch in found for row in batch.to_pylist()]


def by_reader(settings: Settings) -> list[tuple[int, bytes]]:
    with frazil.open(settings) as storage:
        return [(message.offset, message.payload) for message in storage.topic(ORDERS).read("earliest")]


def proof_of(settings: Settings) -> TopicProof:
    (proof,) = prove(settings, ORDERS, lambda _: lambda _: None)
    return proof


def check_whole(settings: Settings, wanted: Sequence[bytes]) -> None:
    """Every row once, in order, through the reader and SQL; and the proof says so."""
    numbered = list(enumerate(wanted))
    assert by_reader(settings) == numbered
    assert by_sql(settings) == numbered
    proof = proof_of(settings)
    assert (proof.problems, proof.end) == ([], len(wanted))


def check_moved(settings: Settings, wanted: Sequence[bytes]) -> None:
    """And in the table, once a mover has run."""
    with frazil.open(settings) as storage:
        report = tick(settings, storage)
    assert (report.failures, report.topics[ORDERS].table_end) == (0, len(wanted))
    assert in_table(settings) == list(enumerate(wanted))
    check_whole(settings, wanted)
