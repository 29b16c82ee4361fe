"""How far a table has a log: the token that each commit moves together with the rows.

    frazil.{log id}.end    the offset up to which the table holds the log
    frazil.{log id}.move   which move set it, so that a writer knows its own after a lost answer
    frazil.{log id}.sequence   the sequence number of the snapshot that set it
    frazil.{log id}.partition   which partition of the topic the log is
    frazil.{log id}.sum    the checksum of all rows that the table ever got of the log
    frazil.{log id}.last   which row the table got last, see `last_row`
    frazil.{log id}.gaps   ranges that are missing, and that a person has accepted as such
    frazil.{log id}.follows   the logs whose rows became those of this one, see `handover`
    frazil.swept           which removal of orphans was last: files that were written before it may be gone
    frazil.transformed     true if rows are the result of a statement: the table is not the topic as it was

They stand in the table's properties and in the summary of the snapshot that moved them. Properties outlive
compaction and expiry; the summaries show whether someone rolled the table back. Where no snapshot that is kept speaks
of a log, because it was moved long ago, the sequence number shows it: a line of snapshots that reaches back to before
that number, and does not speak of the log, is not the one that the log was moved to.
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
"""What PyIceberg can write."""

TRANSFORMED = "frazil.transformed"
SWEPT = "frazil.swept"

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


def followed(table: Table, log_id: str) -> list[str]:
    """The former logs of a log, the oldest first: the table has their rows as rows of this one."""
    return [each for each in table.metadata.properties.get(follows_key(log_id), "").split(",") if each]


def gaps(table: Table, log_id: str) -> list[OffsetRange]:
    """Ranges that a person has accepted as missing."""
    text = table.metadata.properties.get(gaps_key(log_id), "")
    return [OffsetRange(*map(int, each.split("-"))) for each in text.split(",") if each]


def first_held(table: Table, log_id: str) -> int:
    """The first offset that the table must have: all before it a person has accepted as missing."""
    first = 0
    for gap in sorted(gaps(table, log_id)):
        if gap.start <= first:
            first = max(first, gap.end)
    return first


def end_before_log(table: Table, log_id: str, end: int, log_start: int) -> int:
    """Where a reader changes from the table to the log, which begins at `log_start`: at the table's end, or earlier.

    Rows that were accepted as missing from the table are not missing where the log has them. They may be other rows
    than those that were accepted: a log that was cut gives out the same offsets again.
    """
    return min([end, *(max(gap.start, log_start) for gap in gaps(table, log_id) if gap.end > log_start)])


def is_transformed(table: Table) -> bool:
    """Whether the table holds what a statement made of the rows, and not the rows."""
    return table.metadata.properties.get(TRANSFORMED) == "true"


def ends(table: Table) -> dict[str, int]:
    """How far the table has each log that it knows of."""
    properties = table.metadata.properties
    found = ((_END.fullmatch(name), value) for name, value in properties.items())
    return {match["log_id"]: int(value) for match, value in found if match is not None}


def logs(table: Table) -> dict[str, int]:
    """The logs that the table has rows of, and their partitions."""
    found = {}
    for log_id in ends(table):
        found[log_id] = int(table.metadata.properties.get(partition_key(log_id), 0))
    return found


def earlier_log(table: Table, log_id: str, partition: int) -> str | None:
    """Another log whose rows have that partition: a topic that was deleted and made again has offsets of its own."""
    others = [other for other, its in logs(table).items() if other != log_id and its == partition]
    return others[0] if others else None


def check_no_earlier_log(table: Table, log_id: str, partition: int) -> None:
    """`TableRefused` if the table has rows of another log as that partition. A table of results has no offsets."""
    earlier = None if is_transformed(table) else earlier_log(table, log_id, partition)
    if earlier is not None:
        name = ".".join(table.name())
        raise TableRefused(
            f"{name} holds the rows of an earlier topic of that name (log {earlier}, up to offset "
            f"{ends(table)[earlier]}), whose offsets would be doubled; rename or drop the table",
            table=name,
            log_id=earlier,
        )


def check_handed_over(table: Table, log_id: str, former: Iterable[str]) -> None:
    """A renumbered log counts on the table for the rows before its own: until it is the table's log none may be read.

    `former` are the logs whose place it has taken.
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
    """What the table says of a log; None if it has never had any of it."""
    _refuse_newer_format(table)
    end = table.metadata.properties.get(end_key(log_id))
    if end is None:
        return None
    _refuse_if_rolled_back(table, log_id, int(end))
    return Token(int(end), table.metadata.properties.get(move_key(log_id), ""))


def _refuse_newer_format(table: Table) -> None:
    version = table.metadata.format_version
    if version > FORMAT_VERSION_MAX:
        raise TableRefused(
            f"{'.'.join(table.name())} was upgraded to Iceberg format {version}, which can't be written yet; move its"
            f" rows to a table of format {FORMAT_VERSION_MAX} under this name, or wait for a release that can",
            table=".".join(table.name()),
            format_version=version,
        )


def _refuse_if_rolled_back(table: Table, log_id: str, end: int) -> None:
    """The newest snapshot of the present line that speaks of the log must agree with the property.

    A line that none speaks in is fine if those that did were expired.
    """
    said = said_by_snapshots(table, log_id)
    if said is not None and said != end:
        raise TableRolledBack(".".join(table.name()), log_id, said, end)
    if said is None and is_before_token(table, log_id):
        raise TableRolledBack(".".join(table.name()), log_id, 0, end)


def is_before_token(table: Table, log_id: str) -> bool:
    """Whether a line that does not speak of a log reaches back to before its token was set.

    It does if one of its snapshots is no younger than the token, or if it is seen from its very first one on.
    """
    first = None
    for snapshot in line(table):
        first = snapshot
    if first is None:
        return True
    number = first.sequence_number or 0
    set_at = int(table.metadata.properties.get(sequence_key(log_id), 0))
    return number <= set_at or (first.parent_snapshot_id is None and number <= 1)


def said_by_snapshots(table: Table, log_id: str) -> int | None:
    """How far the present line of snapshots says that it has a log; None if none of them speaks of it."""
    for snapshot in line(table):
        said = snapshot.summary.additional_properties.get(end_key(log_id)) if snapshot.summary else None
        if said is not None:
            return int(said)
    return None


def line(table: Table) -> Iterator[Snapshot]:
    """The current snapshot and its ancestors, as far back as they are kept."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None
