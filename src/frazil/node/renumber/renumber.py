"""`frazil log renumber`: continue a log that is behind its table after the table's rows, and keep both.

Up to the cut the log and its table have the same rows. The log's rows from there on are built into a new log, whose
first offset is the table's end; the former log is kept. The steps are ordered so that a crash anywhere leaves the topic
unchanged, or is completed by the next owner of the folder and the next mover:

    1  build the new log next to the topics
    2  set stored positions of subscriptions back to the cut
    3  decide (`~renumbering`), and swap the folders
    4  hand the table over to the new log
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from frazil.core.clock import Clock, SystemClock
from frazil.core.disk import Disk, LocalDisk
from frazil.core.errors import SEE_CHECK, CorruptLog, LakeUnavailable, TableRefused, TopicNotFound
from frazil.core.names import TopicName
from frazil.core.offsets import OffsetRange
from frazil.core.partitions import topic_not_found
from frazil.core.settings import Settings
from frazil.lake.catalogs.opening import open_catalog
from frazil.lake.commit.commit import delay_seconds
from frazil.lake.read.history import TableHistories, TableHistory
from frazil.lake.tables.handover import hand_over
from frazil.lake.tables.last_row import is_last_row
from frazil.lake.tables.schema import table_of
from frazil.lake.tables.token import ends
from frazil.log.folder.catalog import TopicCatalog, TopicRecord
from frazil.log.folder.former import FormerLog
from frazil.log.folder.ownership import owned
from frazil.log.info import LogInfo, log_from_files
from frazil.log.read.ranges import read_range
from frazil.log.repair.check import read_ends
from frazil.log.repair.recovery import recover
from frazil.log.repair.renumber_build import Renumbering, build_log
from frazil.log.repair.renumbering import build_folder, decide, finish_renumbering, kept_folder, remove_unfinished
from frazil.node.member.requirements import check_cluster
from frazil.node.renumber.agreement import agreed_end, append_time_us
from frazil.node.renumber.cursors import Lowered, cursors_above, lower_cursors
from frazil.node.retention.moved import check_catalog

Advance = Callable[[int], None]
Begin = Callable[[str, int], Advance]
"""Called with the next step and its number of rows; the returned function is called with each part done."""


def _unseen(_: str, __: int) -> Advance:
    return lambda _: None


@dataclass(frozen=True, slots=True)
class RenumberPlan:
    """Rows of the log from `cut` up to `log_end` get the offsets from `table_end` on."""

    topic: str
    table: str
    log_id: str
    first_offset: int
    log_end: int
    table_end: int
    cut: int
    subscriptions: tuple[Lowered, ...]
    last_time_us: int

    @property
    def rows(self) -> int:
        return self.log_end - self.cut

    @property
    def end(self) -> int:
        """The topic's end afterwards."""
        return self.table_end + self.rows

    def as_dict(self) -> dict[str, Any]:
        return {
            "log_end": self.log_end,
            "table_end": self.table_end,
            "cut": self.cut,
            "rows_renumbered": self.rows,
            "rows_of_table_alone": self.table_end - self.cut,
            "end": self.end,
            "subscriptions": [one.as_dict() for one in self.subscriptions],
        }


@dataclass(frozen=True, slots=True)
class Renumbered:
    """What was done, or would be in a dry run. `plan` is None if the log is not behind its table.

    `handover_due` means that the table still has the former log's id, because an earlier call was interrupted;
    `handed_over` that it has the new one; `table_error` why it does not yet.
    """

    topic: str
    table: str
    dry_run: bool
    plan: RenumberPlan | None = None
    log_id: str | None = None
    kept_as: Path | None = None
    handover_due: bool = False
    handed_over: bool = False
    table_error: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "table": self.table,
            "dry_run": self.dry_run,
            "needed": self.plan is not None,
            **(self.plan.as_dict() if self.plan is not None else {}),
            "log_id": self.log_id,
            "kept_as": None if self.kept_as is None else str(self.kept_as),
            "handover_due": self.handover_due,
            "handed_over": self.handed_over,
            "table_error": self.table_error,
        }


def renumber(
    settings: Settings,
    topic: str,
    *,
    dry_run: bool = False,
    begin: Begin = _unseen,
    disk: Disk | None = None,
    clock: Clock | None = None,
) -> Renumbered:
    """Continue the topic's log after its table's rows; raises `FolderInUse` while another process owns the folder.

    An earlier call that a crash interrupted is completed first.
    """
    check_cluster(settings, serves=False)
    name, disk = TopicName.parse(topic), disk or LocalDisk()
    try:
        disk.list(settings.log_folder)
    except FileNotFoundError:
        raise TopicNotFound(topic) from None
    with owned(disk, settings):
        return _Renumber(settings, name, disk, clock or SystemClock(), begin).run(dry_run=dry_run)


class _Renumber:
    """For the owner of the folder."""

    def __init__(self, settings: Settings, name: TopicName, disk: Disk, clock: Clock, begin: Begin) -> None:
        self._settings = settings
        self._name = name
        self._disk = disk
        self._clock = clock
        self._begin = begin
        self._folder = settings.log_folder
        self._catalog = TopicCatalog(disk, self._folder)
        self._table = table_of(name)[0]

    def run(self, *, dry_run: bool) -> Renumbered:
        if self._name not in self._catalog:
            raise topic_not_found(self._name, self._catalog.names())
        check_catalog(self._settings, self._disk)
        record = self._catalog.read(self._name)
        due = self._handover_is_due(record)
        if due and not dry_run:
            self._hand_over(record.former[-1], record.log_id)
        plan = self._plan()
        if plan is not None and not dry_run:
            return self._carry_out(plan, record)
        done = (str(self._name), str(self._table), dry_run, plan)
        return Renumbered(*done, handover_due=due, handed_over=due and not dry_run)

    # --- the plan

    def _plan(self) -> RenumberPlan | None:
        info = self._log()
        history = TableHistories(self._settings).of(self._name, info.log_id)
        if history is None:
            return None
        if history.statement_end():
            raise TableRefused(
                f"{self._table} holds the result of a statement, which can't be compared with the log's rows; rename "
                f"{self._table}, which keeps its rows, and the mover creates another from the log",
                table=str(self._table),
            )
        looked = history.look()
        if looked is None:
            return None
        table, table_end = looked
        if table_end <= info.durable_end and self._continues(
            info, table_end, lambda row: is_last_row(table, info.log_id, history.partition, row)
        ):
            return None
        cut = self._cut(history, info, table_end)
        return RenumberPlan(
            str(self._name),
            str(self._table),
            info.log_id,
            info.first_offset,
            info.durable_end,
            table_end,
            cut,
            cursors_above(self._settings, self._name, cut),
            append_time_us(history, table_end - 1, _stored(info)),
        )

    def _log(self) -> LogInfo:
        info = log_from_files(self._disk, self._folder, self._name, read_ends(self._disk, self._folder)[0])
        if isinstance(info, str):
            place = str(self._catalog.folder(self._name))
            raise CorruptLog(place, 0, f"{info.removesuffix(SEE_CHECK)}; repair it first: frazil log repair")
        return info

    def _continues(self, info: LogInfo, table_end: int, is_last: Callable[[pa.RecordBatch], bool]) -> bool:
        """Whether the log continues at the table's end, by the rules of the mover and retention."""
        if table_end <= info.first_offset:
            return True
        return is_last(next(self._rows(info, OffsetRange(table_end - 1, table_end))))

    def _cut(self, history: TableHistory, info: LogInfo, table_end: int) -> int:
        start, end = info.first_offset, min(info.durable_end, table_end)
        if start >= end:
            return end
        both = OffsetRange(start, end)
        advance = self._begin("comparing", len(both))
        return agreed_end(history, lambda wanted: self._rows(info, wanted), both, _stored(info), advance)

    def _rows(self, info: LogInfo, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        return read_range(self._disk, info.log_id, info.files, wanted, _stored(info))

    # --- execution

    def _carry_out(self, plan: RenumberPlan, record: TopicRecord) -> Renumbered:
        place, known = self._catalog.folder(self._name), self._catalog.end_of(record.log_id)
        recovered = recover(self._disk, place, record.log_id, record.first_offset, known)
        assert recovered.end == plan.log_end
        former = FormerLog(record.log_id, plan.cut, plan.table_end, plan.rows, self._clock.now_us())
        what = Renumbering(str(uuid.uuid4()), former, plan.last_time_us)
        target = build_folder(self._folder, what.log_id)
        try:
            advance = self._begin("copying", plan.rows)
            build_log(self._disk, self._settings.wal, record, recovered, what, target, advance)
            lower_cursors(self._settings, self._name, plan.cut)
        except Exception:
            remove_unfinished(self._disk, self._folder)
            raise
        decide(self._disk, self._folder, self._name, record.log_id, what.log_id)
        finish_renumbering(self._disk, self._folder)
        error = None
        try:
            self._hand_over(former, what.log_id)
        except (LakeUnavailable, TableRefused) as refused:
            error = refused.message
        kept = kept_folder(self._folder, record.log_id)
        done = (str(self._name), str(self._table), False, plan, what.log_id, kept)
        return Renumbered(*done, handed_over=error is None, table_error=error)

    def _handover_is_due(self, record: TopicRecord) -> bool:
        """Whether the table still has the id of the former log, after an earlier call was interrupted."""
        if not record.former:
            return False
        history = TableHistories(self._settings).of(self._name, record.former[-1].log_id)
        looked = None if history is None else history.look()
        return looked is not None and record.log_id not in ends(looked[0])

    def _hand_over(self, former: FormerLog, log_id: str) -> None:
        catalog = open_catalog(self._settings)
        hand_over(catalog, self._table, former.log_id, former.table_end, log_id, _back_off)


def _back_off(attempt: int) -> None:
    threading.Event().wait(delay_seconds(attempt))


def _stored(info: LogInfo) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(info.stored_schema))
