"""Former logs of a topic: `frazil log renumber` gives a log a new identity after the rows of its table.

The topic's record keeps them, so that tables, subscriptions and streams that remember the former log can distinguish a
renumbered log from a topic that was deleted and recreated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

FORMER_MAX = 100
"""Former logs that a topic remembers; a client that remembers an older one starts over."""


@dataclass(frozen=True, slots=True)
class FormerLog:
    """Below `cut` the former log and its table have the same rows. The log's rows from `cut` on, `rows` of them, follow
    the table's, which end at `table_end`."""

    log_id: str
    cut: int
    table_end: int
    rows: int
    time_us: int

    def as_content(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> FormerLog:
        numbers = (int(content[name]) for name in ("cut", "table_end", "rows", "time_us"))
        return cls(str(content["log_id"]), *numbers)


def with_former(former: Iterable[FormerLog], added: FormerLog) -> tuple[FormerLog, ...]:
    return (*former, added)[-FORMER_MAX:]


def cut_since(former: Iterable[FormerLog], log_id: str) -> int | None:
    """Return the offset below which rows of a former log keep their offsets; None if it is no former log of these."""
    cut: int | None = None
    for one in former:
        if cut is not None or one.log_id == log_id:
            cut = one.cut if cut is None else min(cut, one.cut)
    return cut
