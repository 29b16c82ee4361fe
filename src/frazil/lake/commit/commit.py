"""One atomic commit of moved rows, exactly once.

The commit is pinned: it asserts the snapshot that was current when the token was read, and is attempted once. Whatever
the answer, the table then decides the outcome:

    accepted            done
    refused             reload: the token is unchanged     → commit the same files on the new parent
                                the token has our move id  → an earlier attempt succeeded: done
                                the token has moved        → someone else moved rows: see below
    anything else       unknown: reload until the table can be read, and decide as above

When the token has moved, our attempt may still have succeeded, its answer lost, and someone else have moved the next
rows since. So the files are looked up in the table: if found, our commit succeeded. If not, they are deleted, but only
if every attempt was explicitly refused; after an unknown answer they are left for the orphan clean-up.

Before each attempt, identities are compared, not only names: the table's UUID and its column ids with those that the
files were written for, and the move's log with the logs that the table has rows of. A commit is not made if the table
was recreated, lost a column, or had orphans removed since the plan (`orphan_files`), if the partition holds rows of
another log, or if rows and results of a statement would mix: such moves are planned again, and refused with a named
error if that cannot help.

The same commit removes the oldest snapshots beyond a limit (`snapshot_expiry`), so that the cost of a commit stays
constant.

The manifests of a refused attempt are deleted at the end, once no snapshot is seen to use them; never after an unknown
answer.

All attempts of one move carry the same move id, so that a late success is recognized as ours. A late attempt cannot
succeed after another commit: its parent is no longer the current snapshot.
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

from frazil.core.backoff import backoff
from frazil.core.errors import FrazilError, LakeUnavailable, TableRefused
from frazil.lake.catalogs.error_text import reason
from frazil.lake.commit.append import Append
from frazil.lake.commit.snapshot_expiry import removable
from frazil.lake.files.checksum import Streams, from_text, joined, to_text
from frazil.lake.files.store_errors import is_of_store, lake_error, store_error
from frazil.lake.pyiceberg_private import delete_old_metadata
from frazil.lake.tables.field_ids import COLUMNS
from frazil.lake.tables.schema import TableName
from frazil.lake.tables.token import (
    SWEPT,
    TRANSFORMED,
    Token,
    count_key,
    derived_key,
    earlier_log,
    end_key,
    ends,
    has_offsets,
    is_transformed,
    last_key,
    move_key,
    partition_key,
    read_token,
    row_count,
    sequence_key,
    sum_key,
)
from frazil.lake.tables.written import with_move

AGAIN_SECONDS_MIN, AGAIN_SECONDS_MAX = 0.1, 5.0
ATTEMPTS_MAX = 20
LOOKS_MAX = 8
STORE_FAILURES_MAX = 3
"""The store's library has tried each request three times by then; the rows wait in the log."""

_log = logging.getLogger("frazil.lake")


def delay_seconds(attempt: int) -> float:
    """Back-off before another attempt, for the `wait` that a commit is given."""
    return backoff(attempt, first=AGAIN_SECONDS_MIN, limit=AGAIN_SECONDS_MAX)


@dataclass(frozen=True, slots=True)
class Moved:
    """Rows of one log from `start` up to `end`, as files that are written but not in a table yet."""

    log_id: str
    start: int
    end: int
    files: tuple[DataFile, ...]
    rows: int
    checksum: str
    partition: int = 0
    streams: Streams = field(default_factory=dict)
    """Checksums of the rows, to be combined with those of the table."""
    transformed: bool = False
    """Whether the rows are derived, or the result of a statement: no checksum covers them."""
    last: str = ""
    """The last row as it was in the log, see `last_row`."""
    derived: Mapping[str, int] = field(default_factory=dict)
    """Of a topic's own table: the derived tables that got rows, and their ends."""
    written: tuple[str, ...] = ()
    """The columns of derived rows, to be recorded; see `written`."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The outcome: logs that are in the table through our files, and logs that someone else moved.

    `table` is the last seen state. `unused` are files that are in no table and never will be: they may be deleted.
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
    """The result of an attempt: accepted, explicitly refused, or unknown, with the reason and the files written."""

    is_known: bool
    why: str = ""
    written: tuple[str, ...] = ()
    store_failure: Exception | None = None
    after: Table | None = None
    """The table as returned by the catalog, if it accepted."""
    expired: tuple[Snapshot, ...] = ()
    """The snapshots that are removed if it accepted."""


@dataclass(frozen=True, slots=True)
class PinnedChange:
    """One commit as requested from the catalog, and the files written for it."""

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
    """Commit files of one table; `wait(attempt)` is called before another attempt.

    `known` is the table that the moves were planned with. If it is stale, the commit is refused like any other, so it
    need not be reloaded before the first attempt. Beyond `snapshots_max` the oldest snapshots are removed. `columns` is
    what the table is to remember of its columns, see `remembered`.
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
        assert not mine  # moves of one table succeed together
        if attempt:
            wait(attempt)
        try:
            answers.append(_try_once(catalog, table, open_moves, move_id, snapshots_max, columns))
        except TableRefused:  # refused here: the catalog was not asked
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
    """Files that cannot be deleted are left for the orphan clean-up."""
    for path in paths:
        try:
            table.io.delete(path)
        except FileNotFoundError:
            continue
        except Exception as error:  # noqa: BLE001 - a failed clean-up must not look like a failed commit
            why = reason(error, table.io.properties)
            _log.warning("could not delete %s, which is in no table: %s", path, why)


def _drop_refused(table: Table, written: set[str]) -> None:
    """Delete manifests and lists of refused attempts; a refusal may be wrong, so only what no
    snapshot is seen to use.
    """
    if not written:
        return
    snapshot = table.current_snapshot()
    used = {each.manifest_list for each in table.snapshots()}
    used |= {manifest.manifest_path for manifest in (snapshot.manifests(table.io) if snapshot else ())}
    if used.isdisjoint(written):
        _delete(table, sorted(written))


def _look(catalog: Catalog, name: TableName, wait: Callable[[int], None]) -> Table:
    """Load the current table, with retries."""
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
    """Whether files written for one table fit the other: the same table, with the same columns.

    New columns of others are fine. A dropped column would lose its values. Files written before a removal of orphans
    may have been deleted.
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
    """Return the moves committed by us, those still to do, and those that someone else has done."""
    mine: list[Moved] = []
    still: list[Moved] = []
    others: list[Moved] = []
    taken: set[int] = set()
    has_results = is_transformed(table) or any(move.transformed for move in moves)
    doubles = has_offsets(table)
    for move in moves:
        token = read_token(table, move.log_id) or Token(0, "")
        if token.end == move.end and token.move_id == move_id:
            mine.append(move)
        elif has_results and not move.transformed:
            others.append(move)  # its rows would be taken for results
        elif doubles and (move.partition in taken or earlier_log(table, move.log_id, move.partition)):
            others.append(move)  # its offsets would be duplicated
        elif token.end == move.start and token.move_id != move_id:
            still.append(move)
            taken.add(move.partition)
        else:
            others.append(move)
    return tuple(mine), tuple(still), tuple(others)


def _ended(table: Table, mine: tuple[Moved, ...], others: tuple[Moved, ...], answers: Sequence[_Answer]) -> Committed:
    """Determine who moved what, and which files are unused."""
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
    """Return those of these files that the current snapshot holds."""
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
    """Make one attempt; the next reload determines its outcome."""
    name = ".".join(table.name())
    try:
        change = _pinned(table, moves, move_id, snapshots_max, columns)
    except (OSError, pa.ArrowException) as error:
        why = reason(error, table.io.properties)
        _log.warning("%s: the commit could not be written (%s); trying again", name, why)
        return _Answer(True, why, store_failure=error)  # the catalog was not asked
    except FrazilError:
        raise
    except Exception as error:  # for example, an unusable table property
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
    """Keep as many metadata versions as the table's properties say; PyIceberg does so only in its own commits.

    Files that cannot be deleted are left for the orphan clean-up: the rows are committed.
    """
    try:
        delete_old_metadata(catalog, before.io, before.metadata, after)
    except Exception as error:  # noqa: BLE001 - a failed clean-up must not look like a failed commit
        _log.warning("%s: old metadata was left behind: %s", ".".join(before.name()), reason(error, catalog.properties))


def _pinned(
    table: Table, moves: Sequence[Moved], move_id: str, snapshots_max: int | None, columns: str | None
) -> PinnedChange:
    """Build files and token as one change of exactly the table that was loaded."""
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
        tokens |= {derived_key(move.log_id, name): str(end) for name, end in move.derived.items()}
        if move.transformed:
            tokens[TRANSFORMED] = "true"
            before = row_count(table, move.log_id)
            before = 0 if before is None and move.log_id not in ends(table) else before
            if before is not None:
                tokens[count_key(move.log_id)] = str(before + move.rows)
        else:
            summary[f"frazil.{move.log_id}.crc"] = move.checksum
            so_far = from_text(table.metadata.properties.get(sum_key(move.log_id), "{}"))
            tokens[sum_key(move.log_id)] = to_text(joined(so_far, move.streams))
    more = {} if columns is None or table.metadata.properties.get(COLUMNS) == columns else {COLUMNS: columns}
    for move in moves:
        more |= with_move(table, move.log_id, move.start, move.written) if move.written else {}
    files = [file for move in moves for file in move.files]
    return pinned_change(table, files, tokens, summary, snapshots_max, more)


def pinned_change(
    table: Table,
    files: Sequence[DataFile],
    tokens: dict[str, str],
    summary: dict[str, str],
    snapshots_max: int | None = None,
    properties: Mapping[str, str] | None = None,
) -> PinnedChange:
    """Build the arguments of `commit_table`: one snapshot that adds the files and moves the tokens, on the current
    parent.
    """
    append = Append(table, list(files), {**tokens, **summary})
    updates, requirements = append.as_updates()
    schema = AssertCurrentSchemaId(current_schema_id=table.metadata.current_schema_id)
    pinned = (AssertTableUUID(uuid=table.metadata.table_uuid), schema, *requirements)
    changes: list[TableUpdate] = [_with_retention(table, update) for update in updates]
    changes.append(SetPropertiesUpdate(updates={**tokens, **(properties or {})}))
    now_ms = max(each.snapshot.timestamp_ms for each in updates if isinstance(each, AddSnapshotUpdate))
    expired = () if snapshots_max is None else tuple(removable(table.metadata, snapshots_max, now_ms))
    if expired:
        changes.append(RemoveSnapshotsUpdate(snapshot_ids=[snapshot.snapshot_id for snapshot in expired]))
    return PinnedChange(pinned, tuple(changes), append, expired)


def _with_retention(table: Table, update: TableUpdate) -> TableUpdate:
    """Keep the branch's snapshot retention, which PyIceberg would drop."""
    if not isinstance(update, SetSnapshotRefUpdate) or update.ref_name not in table.metadata.refs:
        return update
    ref = table.metadata.refs[update.ref_name]
    kept = {
        "max_ref_age_ms": ref.max_ref_age_ms,
        "max_snapshot_age_ms": ref.max_snapshot_age_ms,
        "min_snapshots_to_keep": ref.min_snapshots_to_keep,
    }
    return update.model_copy(update=kept)
