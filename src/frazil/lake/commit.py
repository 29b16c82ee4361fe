"""One atomic commit for what was moved, exactly once.

The commit is pinned: it asserts the snapshot that was current when the token was read, and it is tried once.
Whatever the answer, the table is then the judge:

    accepted            done
    refused             look again: the token is where it was → the same files on the new parent
                                    the token has our move id → an earlier try did land: done
                                    the token is elsewhere    → someone moved on from here: see below
    anything else       unknown: look again until the table can be read, and judge as above

When the token is elsewhere, our try may still have landed, its answer lost, and someone have moved the next rows
since. So the files are looked for in the table: found, they are ours and in. Not found, they are dropped, but
only if every try was refused in so many words; after an unknown answer they are left for the orphan clean-up.

Before each try the identities are compared, not the names alone: the table's UUID and its columns' ids with those that
the files were written by, and the move's log with those that the table has rows of. Files of a table that was made
again, that lost a column, or whose orphans were removed since the plan (`orphan_files`), rows of a log beside another
of the same partition, and rows beside results of a statement are not committed: they are planned anew, and refused by
name where that is no use.

The same commit removes the oldest snapshots beyond a number (`snapshot_expiry`), so that no commit costs more than the
one before it.

The manifests of a refused try are dropped in the end, once no snapshot is seen to use them; never after an unknown
answer.

All tries of one move carry the same move id, so that a try that lands late is known as ours. A late try can't
land after another commit: its parent is no longer the current snapshot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertTableUUID,
    RemoveSnapshotsUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from frazil.core.errors import FrazilError, LakeUnavailable, TableRefused
from frazil.lake.append import Append
from frazil.lake.checksum import Streams, from_text, joined, to_text
from frazil.lake.reasons import reason
from frazil.lake.remembered import COLUMNS
from frazil.lake.snapshot_expiry import removable
from frazil.lake.store_errors import is_of_store, lake_error, store_error
from frazil.lake.tables import TableName
from frazil.lake.token import (
    SWEPT,
    TRANSFORMED,
    Token,
    earlier_log,
    end_key,
    is_transformed,
    last_key,
    move_key,
    partition_key,
    read_token,
    sequence_key,
    sum_key,
)

ATTEMPTS_MAX = 20
LOOKS_MAX = 8
STORE_FAILURES_MAX = 3
"""The store's library has tried each three times by then; the rows wait in the log."""

_log = logging.getLogger("frazil.lake")


@dataclass(frozen=True, slots=True)
class Moved:
    """Rows of one log from `start` up to `end`, as files that are written but in no table yet."""

    log_id: str
    start: int
    end: int
    files: tuple[DataFile, ...]
    rows: int
    checksum: str
    partition: int = 0
    streams: Streams = field(default_factory=dict)
    """Checksums of the rows that join those of the table so far."""
    transformed: bool = False
    """Whether the rows are the result of a statement: then no checksum can speak of them."""
    last: str = ""
    """The last of the rows as they were in the log, see `last_row`."""


@dataclass(frozen=True, slots=True)
class Committed:
    """How it ended: these logs are in the table through our files; those were moved by someone else.

    `table` is as it was seen last. `unused` are files that are in no table and never will be: they may be dropped.
    """

    table: Table
    mine: tuple[Moved, ...]
    others: tuple[Moved, ...]
    unused: tuple[DataFile, ...] = ()
    expired: tuple[Snapshot, ...] = ()
    """The snapshots that the commit removed from the table."""

    @property
    def snapshot_id(self) -> int | None:
        return self.table.metadata.current_snapshot_id


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a try came to: accepted, or refused in so many words, or not known, and why; and what it leaves behind."""

    is_known: bool
    why: str = ""
    written: tuple[str, ...] = ()
    store_failure: Exception | None = None
    after: Table | None = None
    """The table as the catalog says it is since, if it has accepted."""
    expired: tuple[Snapshot, ...] = ()
    """The snapshots that are gone if it has."""


@dataclass(frozen=True, slots=True)
class Change:
    """One commit as it is asked of the catalog, and what was written for it."""

    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]
    append: Append
    expired: tuple[Snapshot, ...] = ()


def commit_moves(
    catalog: Catalog,
    name: TableName,
    moves: Sequence[Moved],
    move_id: str,
    wait: Callable[[int], None],
    known: Table | None = None,
    snapshots_max: int | None = None,
    columns: str | None = None,
) -> Committed:
    """Commit files of one table; `wait(attempt)` is called before another try.

    `known` is the table that the moves were planned by. If it is no longer the table, the commit is refused as any
    other would be, so that it need not be looked at before the first try. Beyond `snapshots_max` the oldest
    snapshots go. `columns` is what the table is to remember of its columns, see `remembered`.
    """
    answers: list[_Answer] = []
    planned = known
    for attempt in range(ATTEMPTS_MAX):
        table = _look(catalog, name, wait) if known is None else known
        if planned is not None and not _fits(planned, table):
            return _ended(table, (), tuple(moves), answers)
        mine, open_moves, others = _judged(table, moves, move_id)
        if not open_moves:
            return _ended(table, mine, others, answers)
        assert not mine  # moves of one table land together
        if attempt:
            wait(attempt)
        try:
            answers.append(_try_once(catalog, table, open_moves, move_id, snapshots_max, columns))
        except TableRefused:  # by us: the catalog was not asked
            if all(answer.is_known for answer in answers):
                drop_files(table, [file for move in moves for file in move.files])
            raise
        known = answers[-1].after
        failures = [answer.store_failure for answer in answers if answer.store_failure is not None]
        if len(failures) >= STORE_FAILURES_MAX:
            raise store_error(failures[-1], table.location(), table.io.properties) from failures[-1]
    raise LakeUnavailable("catalog", f"{name} was not committed in {ATTEMPTS_MAX} attempts: {answers[-1].why}")


def drop_files(table: Table, files: Sequence[DataFile]) -> None:
    """Delete files that are known to be in no table."""
    _delete(table, [file.file_path for file in files])


def _delete(table: Table, paths: Iterable[str]) -> None:
    """What can't be deleted is left for the orphan clean-up."""
    for path in paths:
        try:
            table.io.delete(path)
        except FileNotFoundError:
            continue
        except Exception as error:  # noqa: BLE001 - a failed clean-up must not look like a failed commit
            why = reason(error, table.io.properties)
            _log.warning("could not delete %s, which is in no table: %s", path, why)


def _drop_refused(table: Table, written: set[str]) -> None:
    """Manifests and lists of refused tries; but a refusal may lie, so only what no snapshot is seen to use."""
    if not written:
        return
    snapshot = table.current_snapshot()
    used = {each.manifest_list for each in table.snapshots()}
    used |= {manifest.manifest_path for manifest in (snapshot.manifests(table.io) if snapshot else ())}
    if used.isdisjoint(written):
        _delete(table, sorted(written))


def _look(catalog: Catalog, name: TableName, wait: Callable[[int], None]) -> Table:
    """The table as it is now, however often it takes."""
    for look in range(LOOKS_MAX):
        try:
            return catalog.load_table(name.identifier)
        except NoSuchTableError:
            raise LakeUnavailable("catalog", f"{name} is no longer there") from None
        except Exception as error:
            if look + 1 >= (STORE_FAILURES_MAX if is_of_store(error) else LOOKS_MAX):
                place = catalog.properties.get("warehouse", "")
                raise lake_error(f"{name} could not be loaded", error, place, catalog.properties) from error
            wait(look + 1)
    raise AssertionError("the last look returns or raises")


def _fits(planned: Table, table: Table) -> bool:
    """Whether files that were written for the one table are files of the other: the same table, with the same columns.

    Another's new columns are fine. A column that is gone would take its values with it. Files that were written before
    a removal of orphans may be gone themselves.
    """
    if planned.metadata.table_uuid != table.metadata.table_uuid:
        return False
    if planned.metadata.properties.get(SWEPT) != table.metadata.properties.get(SWEPT):
        return False
    if planned.metadata.current_schema_id == table.metadata.current_schema_id:
        return True
    return planned.schema().field_ids <= table.schema().field_ids


def _judged(
    table: Table, moves: Sequence[Moved], move_id: str
) -> tuple[tuple[Moved, ...], tuple[Moved, ...], tuple[Moved, ...]]:
    """Which moves are in through us, which are still to do, and which someone else has done."""
    mine: list[Moved] = []
    still: list[Moved] = []
    others: list[Moved] = []
    taken: set[int] = set()
    has_results = is_transformed(table) or any(move.transformed for move in moves)
    for move in moves:
        token = read_token(table, move.log_id) or Token(0, "")
        if token.end == move.end and token.move_id == move_id:
            mine.append(move)
        elif not move.transformed and (
            has_results or move.partition in taken or earlier_log(table, move.log_id, move.partition)
        ):
            others.append(move)  # its rows would be taken for results, or its offsets be doubled
        elif token.end == move.start and token.move_id != move_id:
            still.append(move)
            taken.add(move.partition)
        else:
            others.append(move)
    return tuple(mine), tuple(still), tuple(others)


def _ended(table: Table, mine: tuple[Moved, ...], others: tuple[Moved, ...], answers: Sequence[_Answer]) -> Committed:
    """Who moved what, and which files nobody needs."""
    all_known = all(answer.is_known for answer in answers)
    if all_known:
        _drop_refused(table, {path for answer in answers for path in answer.written})
    passed = {file.file_path for move in others for file in move.files}
    found = _in_table(table, passed) if passed else set()
    landed = tuple(move for move in others if any(file.file_path in found for file in move.files))
    rest = tuple(move for move in others if move not in landed)
    unused = tuple(file for move in rest for file in move.files) if all_known else ()
    expired = tuple(snapshot for answer in answers for snapshot in answer.expired)
    return Committed(table, (*mine, *landed), rest, unused, expired)


def _in_table(table: Table, paths: set[str]) -> set[str]:
    """Which of these files the current snapshot holds."""
    snapshot = table.current_snapshot()
    return {
        entry.data_file.file_path
        for manifest in (snapshot.manifests(table.io) if snapshot else ())
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        if entry.data_file.file_path in paths
    }


def _try_once(
    catalog: Catalog,
    table: Table,
    moves: Sequence[Moved],
    move_id: str,
    snapshots_max: int | None,
    columns: str | None,
) -> _Answer:
    """One attempt; how it went is for the next look to see."""
    name = ".".join(table.name())
    try:
        change = _pinned(table, moves, move_id, snapshots_max, columns)
    except (OSError, pa.ArrowException) as error:
        why = reason(error, table.io.properties)
        _log.warning("%s: the commit could not be written (%s); trying again", name, why)
        return _Answer(True, why, store_failure=error)  # the catalog was asked nothing
    except FrazilError:
        raise
    except Exception as error:  # a property of the table that can't be used, say
        why = reason(error, table.io.properties)
        raise TableRefused(f"{name} cannot be committed to ({why})", table=name) from error
    try:
        response = catalog.commit_table(table, change.requirements, change.updates)
    except CommitFailedException as error:
        why = reason(error, catalog.properties)
        _log.info("%s: the commit was refused (%s); looking again", name, why)
        return _Answer(True, why, tuple(change.append.written))
    except Exception as error:  # noqa: BLE001 - the answer is unknown, whatever went wrong: the table is asked
        why = reason(error, catalog.properties)
        _log.warning("%s: the answer to a commit was lost (%s); looking again", name, why)
        return _Answer(False, why, store_failure=error if is_of_store(error) else None)
    _delete(table, change.append.merged_away)
    _remove_old_metadata(catalog, table, response.metadata)
    after = Table(table.name(), response.metadata, response.metadata_location, table.io, catalog, table.config)
    return _Answer(True, after=after, expired=change.expired)


def _remove_old_metadata(catalog: Catalog, before: Table, after: TableMetadata) -> None:
    """As many versions are kept as the table's properties say; PyIceberg sees to it only in a commit of its own.

    What can't be deleted is left for the orphan clean-up: the rows are in.
    """
    try:
        catalog._delete_old_metadata(before.io, before.metadata, after)
    except Exception as error:  # noqa: BLE001 - a failed clean-up must not look like a failed commit
        _log.warning("%s: old metadata was left behind: %s", ".".join(before.name()), reason(error, catalog.properties))


def _pinned(
    table: Table, moves: Sequence[Moved], move_id: str, snapshots_max: int | None, columns: str | None
) -> Change:
    """Files and token as one change of exactly the table that was looked at."""
    tokens: dict[str, str] = {}
    summary: dict[str, str] = {}
    for move in moves:
        tokens[end_key(move.log_id)] = str(move.end)
        tokens[move_key(move.log_id)] = move_id
        tokens[sequence_key(move.log_id)] = str(table.metadata.next_sequence_number())
        tokens[partition_key(move.log_id)] = str(move.partition)
        tokens[last_key(move.log_id)] = move.last
        summary[f"frazil.{move.log_id}.start"] = str(move.start)
        summary[f"frazil.{move.log_id}.rows"] = str(move.rows)
        if move.transformed:
            tokens[TRANSFORMED] = "true"
        else:
            summary[f"frazil.{move.log_id}.crc"] = move.checksum
            so_far = from_text(table.metadata.properties.get(sum_key(move.log_id), "{}"))
            tokens[sum_key(move.log_id)] = to_text(joined(so_far, move.streams))
    more = {} if columns is None or table.metadata.properties.get(COLUMNS) == columns else {COLUMNS: columns}
    files = [file for move in moves for file in move.files]
    return pinned_change(table, files, tokens, summary, snapshots_max, more)


def pinned_change(
    table: Table,
    files: Sequence[DataFile],
    tokens: dict[str, str],
    summary: dict[str, str],
    snapshots_max: int | None = None,
    properties: Mapping[str, str] | None = None,
) -> Change:
    """What `commit_table` is asked: one snapshot that adds the files and moves the tokens, on the present parent."""
    append = Append(table, list(files), {**tokens, **summary})
    updates, requirements = append._commit()  # what `commit()` would send, without its rebasing and retrying
    schema = AssertCurrentSchemaId(current_schema_id=table.metadata.current_schema_id)
    pinned = (AssertTableUUID(uuid=table.metadata.table_uuid), schema, *requirements)
    changes: list[TableUpdate] = [_with_retention(table, update) for update in updates]
    changes.append(SetPropertiesUpdate(updates={**tokens, **(properties or {})}))
    now_ms = max(each.snapshot.timestamp_ms for each in updates if isinstance(each, AddSnapshotUpdate))
    expired = () if snapshots_max is None else tuple(removable(table.metadata, snapshots_max, now_ms))
    if expired:
        changes.append(RemoveSnapshotsUpdate(snapshot_ids=[snapshot.snapshot_id for snapshot in expired]))
    return Change(pinned, tuple(changes), append, expired)


def _with_retention(table: Table, update: TableUpdate) -> TableUpdate:
    """What someone has set of the branch's snapshots to keep stays; PyIceberg would drop it."""
    if not isinstance(update, SetSnapshotRefUpdate) or update.ref_name not in table.metadata.refs:
        return update
    ref = table.metadata.refs[update.ref_name]
    kept = {
        "max_ref_age_ms": ref.max_ref_age_ms,
        "max_snapshot_age_ms": ref.max_snapshot_age_ms,
        "min_snapshots_to_keep": ref.min_snapshots_to_keep,
    }
    return update.model_copy(update=kept)
