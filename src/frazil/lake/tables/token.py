"""The token of a log in its table: the committed end, which each commit moves together with the rows.

    frazil.{log id}.end    the offset up to which the table holds the log
    frazil.{log id}.move   the move that set it, by which a writer recognizes its own after a lost answer
    frazil.{log id}.sequence   the sequence number of the snapshot that set it
    frazil.{log id}.partition   the partition of the topic that the log is
    frazil.{log id}.sum    the checksum of all rows that the table ever got of the log
    frazil.{log id}.last   the last row that the table got, see `last_row`
    frazil.{log id}.gaps   missing ranges that an administrator has accepted
    frazil.{log id}.follows   the logs whose rows became those of this one, see `handover`
    frazil.{log id}.count  of derived rows: how many the table ever got of the log
    frazil.{log id}.derived.{table}   in the topic's own table: the last end at which that derived table got rows
    frazil.{log id}.written, frazil.{log id}.replays   the columns that derived rows were written with, see `written`
    frazil.swept           the last removal of orphans: files written before it may be gone
    frazil.transformed     true if rows are the result of a statement instead of the topic's rows
    frazil.format          the version of these entries, from 2 on; without it they have version 1

They are in the table's properties and in the summary of the snapshot that moved them. Properties survive compaction and
expiry; the summaries show whether someone rolled the table back. If no remaining snapshot mentions a log, because it
was moved long ago, the sequence number decides: a branch of snapshots that reaches back to before that number, without
mentioning the log, is not the one that the log was moved to.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from frazil.core.errors import TableRefused, TableRolledBack
from frazil.core.offsets import OffsetRange

FORMAT_VERSION_MAX = 2
"""The highest version that PyIceberg can write."""

TABLE_FORMAT = "frazil.format"
TABLE_FORMAT_KNOWN = 1

TRANSFORMED = "frazil.transformed"
SWEPT = "frazil.swept"

INDEX_COLUMN = "_index"
"""Of tables of telemetry: the place of a row in its request. No column of a topic begins with an underscore."""

_END = re.compile(r"frazil\.(?P<log_id>.+)\.end")


@dataclass(frozen=True, slots=True)
class Token:
    end: int
    move_id: str


def end_key(log_id: str) -> str:
    return f"frazil.{log_id}.end"


def move_key(log_id: str) -> str:
    return f"frazil.{log_id}.move"


def sequence_key(log_id: str) -> str:
    return f"frazil.{log_id}.sequence"


def sum_key(log_id: str) -> str:
    return f"frazil.{log_id}.sum"


def last_key(log_id: str) -> str:
    return f"frazil.{log_id}.last"


def partition_key(log_id: str) -> str:
    return f"frazil.{log_id}.partition"


def gaps_key(log_id: str) -> str:
    return f"frazil.{log_id}.gaps"


def follows_key(log_id: str) -> str:
    return f"frazil.{log_id}.follows"


def count_key(log_id: str) -> str:
    return f"frazil.{log_id}.count"


def written_key(log_id: str) -> str:
    return f"frazil.{log_id}.written"


def replays_key(log_id: str) -> str:
    return f"frazil.{log_id}.replays"


def derived_key(log_id: str, table: str) -> str:
    return f"frazil.{log_id}.derived.{table}"


def derived_ends(table: Table, log_id: str) -> dict[str, int]:
    """Return the last end at which each derived table got rows, by its name without the namespace, as this table of
    the topic recorded it."""
    prefix = derived_key(log_id, "")
    found = table.metadata.properties.items()
    return {name.removeprefix(prefix): int(value) for name, value in found if name.startswith(prefix)}


def row_count(table: Table, log_id: str) -> int | None:
    """Return how many derived rows the table ever got of the log; None if that was not recorded from the beginning."""
    text = table.metadata.properties.get(count_key(log_id))
    return None if text is None else int(text)


def followed(table: Table, log_id: str) -> list[str]:
    """Return the former logs of a log, oldest first: the table has their rows as rows of this one."""
    return [each for each in table.metadata.properties.get(follows_key(log_id), "").split(",") if each]


def gaps(table: Table, log_id: str) -> list[OffsetRange]:
    """Return the ranges that an administrator has accepted as missing."""
    text = table.metadata.properties.get(gaps_key(log_id), "")
    return [OffsetRange(*map(int, each.split("-"))) for each in text.split(",") if each]


def first_held(table: Table, log_id: str) -> int:
    """Return the first offset that the table must have: all earlier ones were accepted as missing."""
    first = 0
    for gap in sorted(gaps(table, log_id)):
        if gap.start <= first:
            first = max(first, gap.end)
    return first


def end_before_log(table: Table, log_id: str, end: int, log_start: int) -> int:
    """Return where a reader switches from the table to the log, which begins at `log_start`: at the table's end or
    earlier.

    Rows accepted as missing from the table are read from the log if it has them. They may differ from the accepted
    ones: a log that was cut assigns the same offsets again.
    """
    return min([end, *(max(gap.start, log_start) for gap in gaps(table, log_id) if gap.end > log_start)])


def is_transformed(table: Table) -> bool:
    """Whether the table holds the result of a statement instead of the rows."""
    return table.metadata.properties.get(TRANSFORMED) == "true"


def ends(table: Table) -> dict[str, int]:
    """Return the table's end of each log that it knows."""
    properties = table.metadata.properties
    found = ((_END.fullmatch(name), value) for name, value in properties.items())
    return {match["log_id"]: int(value) for match, value in found if match is not None}


def logs(table: Table) -> dict[str, int]:
    """Return the logs that the table has rows of, and their partitions."""
    found = {}
    for log_id in ends(table):
        found[log_id] = int(table.metadata.properties.get(partition_key(log_id), 0))
    return found


def earlier_log(table: Table, log_id: str, partition: int) -> str | None:
    """Return another log with rows of that partition: a recreated topic has its own offsets."""
    others = [other for other, its in logs(table).items() if other != log_id and its == partition]
    return others[0] if others else None


def has_offsets(table: Table) -> bool:
    """Whether rows have the offsets of a log: a statement's results have none, rows derived from requests have."""
    return not is_transformed(table) or INDEX_COLUMN in table.schema().column_names


def check_no_earlier_log(table: Table, log_id: str, partition: int) -> None:
    """Raise `TableRefused` if the table has rows of another log in that partition."""
    earlier = earlier_log(table, log_id, partition)
    if earlier is not None and has_offsets(table):
        name = ".".join(table.name())
        raise TableRefused(
            f"{name} holds the rows of an earlier topic of that name (log {earlier}, up to offset "
            f"{ends(table)[earlier]}), whose offsets would be doubled; rename or drop the table",
            table=name,
            log_id=earlier,
        )


def check_handed_over(table: Table, log_id: str, former: Iterable[str]) -> None:
    """Refuse to read until a renumbered log is the table's log: it relies on the table for earlier rows.

    `former` are the logs that it has replaced.
    """
    held = ends(table)
    if log_id not in held and any(one in held for one in former):
        raise TableRefused(
            f"{'.'.join(table.name())} is not handed over yet to the log that was renumbered; the mover does it, or "
            "run `frazil log renumber` again",
            table=".".join(table.name()),
            log_id=log_id,
        )


def read_token(table: Table, log_id: str) -> Token | None:
    """Return the table's token of a log; None if it never had any of it."""
    refuse_newer_format(table)
    end = table.metadata.properties.get(end_key(log_id))
    if end is None:
        return None
    _refuse_if_rolled_back(table, log_id, int(end))
    return Token(int(end), table.metadata.properties.get(move_key(log_id), ""))


def refuse_newer_format(table: Table) -> None:
    """`TableRefused` of a table that a newer Frazil or a newer Iceberg made: what its entries mean is not known."""
    name, own = ".".join(table.name()), table.metadata.properties.get(TABLE_FORMAT, str(TABLE_FORMAT_KNOWN))
    if own != str(TABLE_FORMAT_KNOWN):
        raise TableRefused(
            f"{name} was made by a newer Frazil ({TABLE_FORMAT} {own}, and this one reads {TABLE_FORMAT_KNOWN}); "
            "read and move it with that Frazil, or a later one",
            table=name,
            format_version=own,
        )
    version = table.metadata.format_version
    if version > FORMAT_VERSION_MAX:
        raise TableRefused(
            f"{name} was upgraded to Iceberg format {version}, which can't be written yet; move its"
            f" rows to a table of format {FORMAT_VERSION_MAX} under this name, or wait for a release that can",
            table=name,
            format_version=version,
        )


def _refuse_if_rolled_back(table: Table, log_id: str, end: int) -> None:
    """Check that the newest snapshot of the main branch that mentions the log agrees with the property.

    A branch without such a snapshot is fine if those snapshots were expired.
    """
    said = end_by_snapshots(table, log_id)
    if said is not None and said != end:
        raise TableRolledBack(".".join(table.name()), log_id, said, end)
    if said is None and is_before_token(table, log_id):
        raise TableRolledBack(".".join(table.name()), log_id, 0, end)


def is_before_token(table: Table, log_id: str) -> bool:
    """Whether a branch that does not mention a log reaches back to before its token was set.

    It does if one of its snapshots is no younger than the token, or if it is kept from its first snapshot on.
    """
    first = None
    for snapshot in line(table):
        first = snapshot
    if first is None:
        return True
    number = first.sequence_number or 0
    set_at = int(table.metadata.properties.get(sequence_key(log_id), 0))
    return number <= set_at or (first.parent_snapshot_id is None and number <= 1)


def end_by_snapshots(table: Table, log_id: str) -> int | None:
    """Return the end of a log according to the snapshots of the main branch; None if none mentions it."""
    for snapshot in line(table):
        said = snapshot.summary.additional_properties.get(end_key(log_id)) if snapshot.summary else None
        if said is not None:
            return int(said)
    return None


def line(table: Table) -> Iterator[Snapshot]:
    """Yield the current snapshot and its ancestors, as far back as they are kept."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None
