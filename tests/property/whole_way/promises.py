"""What was promised of one log: the oracle of the whole way.

What was acknowledged stands at its offset, unchanged. What was refused is nowhere. What is unknown is there once,
whole, or not at all; once it was seen it stays. What the test itself destroyed is remembered as destroyed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Rows = list[tuple[int, bytes]]
"""Offset and payload, in the order in which they were found. Every payload of a test is published once."""


@dataclass
class LogPromises:
    """One log, from its creation to its deletion. Another topic of that name has promises of its own."""

    name: str
    log_id: str
    acked: dict[int, bytes] = field(default_factory=dict)
    unknown: list[list[bytes]] = field(default_factory=list)
    refused: set[bytes] = field(default_factory=set)
    former: dict[int, set[bytes]] = field(default_factory=dict)
    """What stood at offsets that a repair cut off and gave out again."""
    destroyed: set[int] = field(default_factory=set)
    """Acknowledged rows that the test took away in every place that had them, or deleted from the table."""
    accepted: set[int] = field(default_factory=set)
    """Offsets of which a person said that they are missing, as the table has it written down."""
    trouble: str | None = None
    """What the test did to the table, until all faces answer again: faces may refuse, and never answer wrongly."""

    former_ids: list[str] = field(default_factory=list)
    """Of the logs whose place it has taken: the table may still have their names."""
    deleting: bool = False
    """Whether a deletion was asked for that may have happened."""

    @property
    def end(self) -> int:
        return max(self.acked, default=-1) + 1

    @property
    def is_whole(self) -> bool:
        """Whether every face must answer: all of it, but for what was accepted as missing."""
        return self.trouble is None and self.destroyed <= self.accepted

    def sends(self, rows: list[bytes]) -> None:
        """A batch is on its way: until it is answered nobody knows what became of it."""
        self.unknown.append(rows)

    def acknowledge(self, rows: list[bytes], first: int) -> None:
        if rows in self.unknown:
            self.unknown.remove(rows)
        places = {payload: offset for offset, payload in self.acked.items()}
        for offset, payload in enumerate(rows, first):
            there = self.acked.setdefault(offset, payload)
            assert there == payload, f"{payload[:20]!r} was answered with offset {offset}, where {there[:20]!r} stands"
            assert places.get(payload, offset) == offset, f"{payload[:20]!r} is stored twice"

    def refuse(self, rows: list[bytes]) -> None:
        """The answer said that nothing was written."""
        self.unknown.remove(rows)
        self.refused.update(rows)

    def adopt(self, in_log: Rows, in_table: Rows) -> None:
        """Rows that nobody acknowledged: each must be of a batch of unknown outcome, which is there whole.

        What retention took from the log since is in the table.
        """
        moved = [row for row in in_table if row[1] not in self.former.get(row[0], ())]
        new = sorted(row for row in {**dict(moved), **dict(in_log)}.items() if row[0] not in self.acked)
        while new:
            first, payload = new[0]
            batch = next((each for each in self.unknown if each[0] == payload), None)
            assert batch is not None, f"{payload[:20]!r} at offset {first} was never published, or is there twice"
            whole = list(enumerate(batch, first))
            assert new[: len(batch)] == whole, f"{payload[:20]!r} at offset {first}: its batch is there in part"
            self.acknowledge(batch, first)
            new = new[len(batch) :]

    def cut(self, end: int) -> None:
        """A repair cut the log: offsets from `end` on are given out again."""
        for offset in [each for each in self.acked if each >= end]:
            self.former.setdefault(offset, set()).add(self.acked.pop(offset))
        self.destroyed = {offset for offset in self.destroyed if offset < end}

    def renumber(self, log_id: str, cut: int, table_end: int, in_table: Rows) -> None:
        """The log has a new identity: below the cut all is as it was, then come the table's rows, then the log's."""
        log = {offset - cut + table_end: payload for offset, payload in self.acked.items() if offset >= cut}
        table = {offset: payload for offset, payload in in_table if cut <= offset < table_end}
        below = {offset: payload for offset, payload in self.acked.items() if offset < cut}
        self.former_ids.append(self.log_id)
        self.log_id, self.acked = log_id, {**below, **table, **log}
        self.destroyed |= set(range(cut, table_end)) - table.keys()

    def may_stand(self, offset: int, payload: bytes) -> bool:
        return self.acked.get(offset) == payload or payload in self.former.get(offset, ())

    # --- what is asked

    def check_log(self, rows: Rows) -> None:
        """The log alone, as its files have it, after `adopt`."""
        offsets = [offset for offset, _ in rows]
        assert offsets == list(range(offsets[0], offsets[0] + len(rows))) if rows else True, "the log has a gap"
        for offset, payload in rows:
            assert payload not in self.refused, f"{payload[:20]!r} was refused, and is at offset {offset}"
            assert self.acked.get(offset) == payload, f"offset {offset} of the log has another row than was promised"

    def check_table(self, rows: Rows) -> None:
        """The table alone, after `adopt`: nothing twice, nothing changed."""
        offsets = [offset for offset, _ in rows]
        assert len(set(offsets)) == len(offsets), f"the table has offsets twice: {_doubled(offsets)}"
        for offset, payload in rows:
            assert payload not in self.refused, f"{payload[:20]!r} was refused, and is in the table"
            assert self.may_stand(offset, payload), f"offset {offset} of the table has another row than was promised"

    def check_nothing_is_lost(self, *places: Rows) -> None:
        held = {row for rows in places for row in rows}
        lost = [offset for offset, payload in self.acked.items() if (offset, payload) not in held]
        gone = sorted(set(lost) - self.destroyed)
        assert not gone, f"acknowledged and nowhere: offsets {gone}"

    def check_face(self, face: str, rows: Rows, end: int, *, has_table: bool = True, has_log: bool = True) -> bool:
        """What a reader gave, up to `end`; returns whether that was all.

        Less is right only where a test destroyed it and a person accepted that. Who has no table, for it was dropped or
        is another's, can't know of what was in it. Who has no log can't know of rows that the log got at offsets whose
        rows were accepted as missing.
        """
        offsets = [offset for offset, _ in rows]
        assert offsets == sorted(set(offsets)), f"{face}: not in order, or twice"
        for offset, payload in rows:
            right = self.acked.get(offset) == payload or (self.trouble and self.may_stand(offset, payload))
            assert right, f"{face}: another row than was promised at offset {offset}"
        missing = set(range(end)) - set(offsets)
        gone = missing if not has_log else missing & (self.destroyed | (missing - self.acked.keys()))
        unexplained = missing - (gone & self.accepted if has_table else self.destroyed)
        assert not unexplained, f"{face}: no error, but offsets {sorted(unexplained)} are missing"
        return missing <= self.accepted


def _doubled(offsets: Sequence[int]) -> list[int]:
    return sorted({offset for offset in offsets if offsets.count(offset) > 1})[:20]


def owner_of(payload: bytes, logs: Iterable[LogPromises]) -> LogPromises | None:
    """The log that a row was published to."""
    for log in logs:
        known: Mapping[int, set[bytes]] = log.former
        if payload in log.acked.values() or any(payload in each for each in known.values()):
            return log
        if any(payload in batch for batch in log.unknown):
            return log
    return None
