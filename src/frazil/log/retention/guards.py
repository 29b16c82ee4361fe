"""Guards that must agree before retention removes rows, such as the table or subscriptions without acknowledgement.

The removing process asks them at that moment. A guard returns the offset below which rows may be removed. A guard that
cannot answer raises, and then everything is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from frazil.core.settings import RetentionSettings
    from frazil.log.topic_log import TopicLog

SUBSCRIPTIONS = "subscriptions"
"""The guard that a retention with `until_acked` requires: without its answer nothing counts as acknowledged."""


class Guard(Protocol):
    @property
    def name(self) -> str:
        """The name of the guard, for people."""
        ...

    @property
    def holds_rows(self) -> bool:
        """Whether rows below its floor are stored elsewhere, as in a table; otherwise removed rows are lost."""
        ...

    def concerns(self, log: TopicLog) -> bool:
        """Whether it applies to this log: decided quickly from settings and local files."""
        ...

    def floor(self, log: TopicLog) -> int:
        """Return the offset below which rows may be removed. Runs in its own thread and may query a server; an
        exception keeps everything.
        """
        ...

    def close(self) -> None: ...


GuardsOf = Callable[[], Iterable[Guard]]


class Allowed(NamedTuple):
    """The combined answer of all guards: rows below `floor`, which a table holds if `in_table`, under this policy.

    `guard` is the one that allows least; empty if none keeps anything.
    """

    floor: int
    in_table: bool
    retention: RetentionSettings
    guard: str = ""


@dataclass(frozen=True, slots=True)
class RetentionHold:
    """Why rows past their retention are kept: the guard, since when, and its floor.

    `floor` is None if the guard cannot answer; `error` says why.
    """

    guard: str
    since_us: int = field(compare=False)
    floor: int | None
    error: str | None


class GuardFailed(Exception):
    """A guard could not answer; the cause says why."""

    def __init__(self, guard: str) -> None:
        super().__init__(guard)
        self.guard = guard


def ask(guards: Iterable[Guard], log: TopicLog) -> Allowed:
    """Return the lowest floor of all guards; the durable end without guards. Raises `GuardFailed`
    if one cannot answer.
    """
    retention, end = log.retention, log.durable_end
    floors, in_table = [(end, "")], False
    acked = False
    for guard in guards:
        try:
            floors.append((guard.floor(log), guard.name))
        except Exception as error:
            raise GuardFailed(guard.name) from error
        in_table = in_table or guard.holds_rows
        acked = acked or guard.name == SUBSCRIPTIONS
    if retention.until_acked and not acked:
        floors.append((0, SUBSCRIPTIONS))
    floor, name = min(floors)
    return Allowed(floor, in_table, retention, name)
