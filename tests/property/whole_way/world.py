"""A data folder, its owner, its movers and its tables in one process, and what was promised to those who use them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faces
from actors import Client, Killed, MoverProcess
from lake_hands import LakeHands
from mirrored_disk import MirroredDisk
from promises import LogPromises, Rows, owner_of

import frazil.node.movers.accepting
from frazil import (
    CorruptLog,
    FrazilError,
    LogFailed,
    RetentionSettings,
    Sent,
    Storage,
    SyncMode,
    TableRefused,
    TryLater,
)
from frazil.broker.topics.deleting import delete_with_records
from frazil.core.sequences import ProducerOpening, new_client_id
from frazil.core.settings import make_settings
from frazil.lake.catalogs.opening import catalog_properties, open_catalog
from frazil.lake.tables.store import TableStore
from frazil.log.repair.repair import repair
from frazil.node.movers.log_source import OwnLogs
from frazil.node.movers.status_file import StatusFile, write_status
from frazil.node.opening import open_to_move
from frazil.node.renumber.renumber import renumber
from frazil.pipeline.move.mover import Mover
from frazil.testing import FakeClock, FaultyDisk, PowerCut
from frazil.testing.jobs import InProcessJobs

KIB = 1024
SEGMENT_BYTES = 64 * KIB
AHEAD = "the table is ahead of the log"


class World:
    def __init__(self, folder: Path, mode: SyncMode = SyncMode.ALWAYS, faults: FaultyDisk | None = None) -> None:
        wal = {
            "max_file_size": SEGMENT_BYTES, "sync_mode": mode, "fsync_interval_ms": 3_600_000,
            "max_batch_bytes": 40_000, "cache_capacity": 0,
        }  # fmt: skip
        self.folder = folder
        self.settings = make_settings({"data": folder / "data", "wal": wal})
        self.clock = FakeClock()
        self.disk = MirroredDisk(folder / "data", faults or FaultyDisk())
        self.logs: dict[str, LogPromises] = {}
        self.deleted: list[LogPromises] = []
        self.restored: set[str] = set()
        """Topics whose tables are copies, which may name files that are gone."""
        self.count = 0
        self.renumbered = 0
        self.moves = False
        """Whether the process that owns the folder has a mover, as far as it knows: others may move its rows, too."""
        self.storage: Storage | None = None
        self.open()
        self.lake = LakeHands(self.settings)
        self.movers = [self._new_mover() for _ in range(2)]

    # --- the owner

    def open(self) -> Storage:
        assert self.storage is None
        self.storage = open_to_move(self.settings, moves=self.moves, disk=self.disk, clock=self.clock)
        return self.storage

    def close(self) -> None:
        storage, self.storage = self.storage, None
        if storage is not None:
            storage.close()

    def restart(self, *, moves: bool = False) -> None:
        self.close()
        self.moves = moves
        self.open()

    def kill(self) -> None:
        """SIGKILL: what was written is there."""
        self.abandon()
        self.disk = self.disk.kill()
        self.open()
        self._note_movers_source()

    def cut_power(self, seed: int) -> None:
        """What was never synced may be gone."""
        durable = self._durable_ends()
        self.abandon()
        self.disk = self.disk.crash(random.Random(seed))
        self.open()
        self._note_movers_source()
        self._forget_unsynced(durable)

    def attempt(self, act: Callable[[], object], seed: int = 0) -> None:
        """Do it; if the machine or the log dies of it, start again."""
        try:
            act()
        except PowerCut:
            self.cut_power(seed)
        except TryLater:
            pass
        except (LogFailed, OSError):
            self.kill()

    def abandon(self) -> None:
        """End the threads of an owner that died: nothing is flushed or recorded."""
        if self.storage is not None:
            self.storage._retention.close()
            self.storage._context.keeper.close()
            self.storage._context.pool.close()
        self.storage = None

    def _durable_ends(self) -> dict[str, int]:
        if self.storage is None:
            return {}
        return {topic.name: topic.log.durable_end for topic in self.storage.opened_topics()}

    def _forget_unsynced(self, durable: dict[str, int]) -> None:
        """In mode `always` all that was acknowledged is durable; in the others only what was synced is."""
        if self.settings.wal.sync_mode is SyncMode.ALWAYS:
            return
        for name, log in self.logs.items():
            end = self.topic(name).stats().end
            assert end >= min(durable.get(name, 0), log.end), "durable rows are lost"
            for offset in [each for each in log.acked if each >= end]:
                del log.acked[offset]

    # --- publishing

    def topic(self, name: str) -> frazil.Topic:
        """Made if it is not there, with promises of its own."""
        assert self.storage is not None
        if name not in self.logs:
            topic = self.storage.topic(name)  # made by us, or by a call that failed after its effect
            self.logs[name] = LogPromises(name, topic.log.log_id)
            if self.lake.log_ids(name):
                self.logs[name].trouble = "the table holds the rows of an earlier topic"
        return self.storage.topic(name, create=False)

    def new_rows(self, count: int, size: int) -> list[bytes]:
        rows = []
        for _ in range(count):
            self.count += 1
            rows.append(b"row %d " % self.count + b"." * size)
        return rows

    def publish(self, name: str, count: int, size: int) -> None:
        topic, rows = self.topic(name), self.new_rows(count, size)
        log = self.logs[name]
        log.sends(rows)
        try:
            first = topic.publish(rows[0]) if count == 1 else topic.publish_many(rows).start
        except (TryLater, frazil.InvalidInput):
            log.refuse(rows)
            raise
        log.acknowledge(rows, first)

    # --- clients that number their rows

    def take_name(self, client: Client) -> None:
        """A new client, whose user wants the name whoever has it."""
        topic, client.id = self.topic(client.topic), new_client_id()
        state = topic.open_producer(client.producer, client=client.id)
        client.log_id, client.epoch, client.sequence = topic.log.log_id, state.epoch, state.next_sequence
        client.in_flight = []

    def come_back(self, client: Client) -> None:
        """A client whose connection was cut opens its producer by itself: the name is its own, or it is fenced."""
        if client.log_id != self._log_id(client.topic):
            return
        topic = self.topic(client.topic)
        try:
            opened = topic.log.open_producer(client.producer, ProducerOpening(client.id, held=client.epoch))
        except frazil.ProducerFenced:
            return
        assert opened.resumed, "a client got a new epoch that its user did not ask for"
        assert opened.state.epoch == client.epoch
        self.send_again(client)
        assert not client.in_flight

    def _log_id(self, name: str) -> str | None:
        log = self.logs.get(name)
        return None if log is None else log.log_id

    def send(self, client: Client, count: int, size: int, *, answer_is_lost: bool) -> None:
        topic, rows = self.topic(client.topic), self.new_rows(count, size)
        if client.log_id != topic.log.log_id:
            self.take_name(client)
        sent, log = Sent(client.producer, client.epoch, client.sequence), self.logs[client.topic]
        client.sequence += count
        client.in_flight.append((sent, rows))
        log.sends(rows)
        try:
            first = topic.publish_many(rows, sent=sent).start
        except (frazil.ProducerFenced, frazil.SequenceGap, TryLater):
            log.refuse(rows)
            client.in_flight.pop()
            client.sequence -= count
            return
        except frazil.SequenceForgotten:
            client.in_flight.pop()
            return
        if not answer_is_lost:
            log.acknowledge(rows, first)
            client.in_flight.pop()

    def send_again(self, client: Client) -> None:
        """What has no answer goes again, in order, under the same numbers."""
        if client.log_id != self._log_id(client.topic):
            return
        topic, log = self.topic(client.topic), self.logs[client.topic]
        for sent, rows in client.in_flight:
            try:
                first = topic.publish_many(rows, sent=sent).start
            except (frazil.ProducerFenced, frazil.SequenceGap, frazil.SequenceForgotten, TryLater):
                break  # whether the first try was stored stays unknown
            log.acknowledge(rows, first)
        client.in_flight = []

    # --- topics

    def delete_topic(self, name: str) -> None:
        assert self.storage is not None
        if name in self.logs:
            self.logs[name].deleting = True
            delete_with_records(self.storage, name, force=True)
            self.deleted.append(self.logs.pop(name))

    def settle_deletions(self) -> None:
        """After a deletion that failed: the topic is wholly there or gone."""
        if self.storage is not None:
            for name in [each for each, log in self.logs.items() if log.deleting]:
                if name not in self.storage.topics():
                    self.deleted.append(self.logs.pop(name))

    def retain(self, name: str, retention: RetentionSettings) -> None:
        """Whatever retention removes, the table must have, whoever owns the folder and whatever movers report."""
        assert self.storage is not None
        if name in self.logs:
            self.storage.set_retention(name, retention)
            self.storage.maintain()
            self.disk.list(self.folder)  # the power may have gone in the thread that asks guards

    # --- movers

    def _new_mover(self) -> MoverProcess:
        assert self.storage is not None
        properties, catalog = catalog_properties(self.settings), open_catalog(self.settings)
        tables, jobs = TableStore(catalog, properties.get("warehouse"), properties), InProcessJobs()
        source = OwnLogs(self.storage)
        mover = Mover(self.settings, source, tables, jobs, self.clock, lambda _: None)
        status = StatusFile(lambda told: write_status(self.settings, self.clock, "here", 1, told), self.clock)
        return MoverProcess(mover, jobs, status, catalog, catalog.commit_table)

    def _note_movers_source(self) -> None:
        """Movers outlive the owner, and ask the new one."""
        assert self.storage is not None
        for process in getattr(self, "movers", ()):
            process.mover._source = OwnLogs(self.storage)

    def tick(
        self,
        which: int,
        around_commit: Callable[[Callable[[], Any]], Any] = lambda commit: commit(),
        meanwhile: Callable[[], None] = lambda: None,
        careful: bool = False,
    ) -> set[str]:
        """One tick of one mover; returns the topics that were not moved. If it is `careful`, nothing disturbs it."""
        process = self.movers[which]
        process.mover._source = OwnLogs(self.storage)  # type: ignore[arg-type]
        process.jobs.meanwhile = meanwhile
        process.catalog.commit_table = lambda *words, **named: around_commit(lambda: process.commit(*words, **named))
        try:
            report = process.mover.tick(all_of_it=True)
        except Killed:
            process.catalog.engine.dispose()
            self.movers[which] = self._new_mover()
            return set()
        process.status.ticked(report)
        for name, topic in report.topics.items():
            log = self.logs.get(name)
            excused = log is None or not log.is_whole or name in process.stale or not careful
            assert topic.error is None or excused, f"a whole topic is not moved: {topic.error}"
        failed = {name for name, topic in report.topics.items() if topic.error is not None}
        process.stale -= failed
        return failed

    def accept(self, name: str) -> None:
        """A person lets the table go on from what it has."""
        storage = self.storage
        assert storage is not None

        @contextlib.contextmanager
        def own(*_: object, **__: object) -> Iterator[OwnLogs]:
            yield OwnLogs(storage)

        real = frazil.node.movers.accepting.open_source
        frazil.node.movers.accepting.open_source = own  # type: ignore[assignment]
        try:
            with contextlib.suppress(FrazilError):
                frazil.node.movers.accepting.accept_topic(self.settings, name)
        finally:
            frazil.node.movers.accepting.open_source = real

    # --- what takes rows away

    def destroy(self, name: str | None, what: str, act: Callable[[], object]) -> None:
        """Do something to a table, or to all, that no Frazil process does, and note what it took away for good."""
        affected = {each: log for each, log in self.logs.items() if name in (None, each)}
        for each in affected:
            self.check(each)
        if act() is False:
            return
        for each, log in affected.items():
            held = {*self._log_rows(each), *self.lake.rows(each)}
            log.destroyed |= {offset for offset, payload in log.acked.items() if (offset, payload) not in held}
            log.trouble = what
        changed = {*self.logs, *(log.name for log in self.deleted)} if name is None else {name}
        self.restored = self.restored | changed if what == "restored" else self.restored - changed
        for process in self.movers:
            process.stale |= changed

    def delete_rows(self, name: str, start: int, end: int) -> None:
        """A person deletes rows from the table. They are gone, whether the log has them for a while or not."""
        self.check(name)
        log = self.logs[name]
        deleted = {offset for offset, _ in self.lake.rows(name) if start <= offset < end}
        if deleted and self.lake.log_ids(name) == {log.log_id}:
            self.lake.delete(name, f"_offset >= {start} and _offset < {end}")
            log.destroyed |= deleted
            log.trouble = "rows deleted"

    def damage_and_repair(self, name: str, seed: int) -> None:
        """A byte of the log rots; the documented repair cuts the log there."""
        self.check(name)
        in_table, dice = self.lake.rows(name), random.Random(seed)
        segments = [(each.path, each.used_bytes) for each in self.topic(name).log.segments if each.used_bytes]
        self.close()
        if segments:
            path, size = dice.choice(segments)
            position = dice.randrange(size)
            file = self.disk.open(path, "write")
            file.write([bytes([file.read(1, position)[0] ^ 0xFF])], position)
            file.sync()
            file.close()
        repair(self.settings, name, disk=self.disk)
        self.clock.advance(1)  # no clock stands still over a repair: new rows are not as old as those cut off
        self.open()
        log, end = self.logs[name], self.topic(name).stats().end
        log.cut(end)
        held = {*self._log_rows(name), *in_table}
        log.destroyed |= {offset for offset, payload in log.acked.items() if (offset, payload) not in held}
        if any(offset >= end for offset, _ in in_table):
            log.trouble = AHEAD

    def renumber(self, name: str) -> None:
        """The documented way to keep the rows of a log and of its table, or a refusal, which changes nothing."""
        self.check(name)
        log = self.logs[name]
        self.close()
        try:
            done = renumber(self.settings, name, disk=self.disk, clock=self.clock)
        except (TableRefused, CorruptLog) as error:
            if log.is_whole:
                raise AssertionError(f"a topic that is whole is not left alone: {error}") from error
        else:
            assert done.plan is None or not log.is_whole, "a topic that is whole was renumbered"
        self.open()
        self.settle_renumbering(name)

    def settle_renumbering(self, name: str) -> None:
        """Also after one that was cut short: the log is the former one, or it follows its table."""
        log, found = self.logs[name], self.topic(name).log
        if found.log_id == log.log_id:
            return
        former = found.former[-1]
        assert former.log_id == log.log_id, "the topic has a log that never was"
        log.renumber(found.log_id, former.cut, former.table_end, self.lake.rows(name))
        handed_over = self.lake.log_ids(name) == {log.log_id}
        if log.trouble == AHEAD or not handed_over:
            log.trouble = None if handed_over else "the table is not handed over yet"
        self.renumbered += 1

    def mend_log(self, name: str) -> None:
        """The documented repair, on a log that needs none or has a torn tail: no row is lost."""
        self.close()
        repair(self.settings, name, disk=self.disk)
        self.open()

    # --- the oracle

    def _log_rows(self, name: str) -> Rows:
        assert self.storage is not None
        return faces.log_files(self.storage, name)

    def _table_rows(self, name: str) -> Rows:
        """Those of this log; the others must be of one that was deleted."""
        mine: Rows = []
        for offset, payload in self.lake.rows(name):
            owner = owner_of(payload, [self.logs[name], *self.deleted])
            assert owner is not None, f"{payload[:20]!r} is in the table, and was never published"
            if owner is self.logs[name]:
                mine.append((offset, payload))
        return mine

    def check(self, name: str) -> None:
        """Log and table by themselves: nothing lost, nothing twice, nothing changed, nothing that was refused."""
        log = self.logs[name]
        in_log, in_table = self._log_rows(name), self._table_rows(name)
        log.accepted = self.lake.accepted(name, log.log_id)
        log.adopt(in_log, in_table)
        log.check_log(in_log)
        log.check_table(in_table)
        log.check_nothing_is_lost(in_log, in_table)

    def look(self, name: str) -> None:
        """Through every face: all of it, or, where the test did harm, a refusal. `verify` says which."""
        self.check(name)
        log, storage = self.logs[name], self.storage
        assert storage is not None
        has_table = log.log_id in self.lake.log_ids(name)
        views = {
            "embedded reader": lambda: faces.embedded(storage, name),
            "Spark source": lambda: faces.spark_source(self.settings, name),
            "sql": lambda: faces.sql(self.settings, name),
        }
        whole = True
        for face, view in views.items():
            found = faces.asked(view)
            if isinstance(found, FrazilError):
                if log.is_whole:
                    raise AssertionError(f"{face} refuses a topic that is whole: {found}") from found
                whole = False
            else:
                whole &= log.check_face(face, found, log.end, has_table=has_table)
        self._look_read_only(log)
        self._look_at_proof(log, whole)

    def _look_read_only(self, log: LogPromises) -> None:
        try:
            log_id, found = faces.read_only(self.settings, log.name)
        except frazil.TopicNotFound:
            assert not self._table_rows(log.name) or not log.is_whole, "rows are in the table, and not read-only"
        except FrazilError as error:
            if log.is_whole and self._table_rows(log.name):
                raise AssertionError(f"read-only refuses a topic that is whole: {error}") from error
        else:
            of = next((each for each in (log, *self.deleted) if log_id in (each.log_id, *each.former_ids)), None)
            assert of is not None, "read-only shows a log that never was"
            if log_id == log.log_id:
                log.check_face("read-only", found, self.lake.end(log.name, log.log_id), has_log=False)

    def _look_at_proof(self, log: LogPromises, whole: bool) -> None:
        """Proven if and only if everything can be read; what a person accepted as missing is told as that."""
        in_table = self._table_rows(log.name)
        end = self.topic(log.name).stats().end
        ahead = any(offset >= end or log.acked[offset] != payload for offset, payload in in_table)
        try:
            proof = faces.proof(self.settings, log.name)
        except FrazilError as error:
            if log.is_whole:
                raise AssertionError(f"verify refuses a topic that is whole: {error}") from error
            return
        readable = whole and not ahead
        problems = [problem.as_dict() for problem in proof.problems]
        if log.is_whole or not readable:
            assert proof.proven == readable, f"verify says proven={proof.proven}, readable={readable}: {problems}"
        if whole and proof.proven and not ahead and self.lake.log_ids(log.name) <= {log.log_id}:
            log.trouble = None
            self.restored.discard(log.name)

    def finish(self) -> None:
        """Give everything back."""
        try:
            self.abandon()
        finally:
            for process in self.movers:
                process.catalog.engine.dispose()
            self.lake.close()
