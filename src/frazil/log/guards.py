"""What must agree before retention removes rows: the rows' table, the subscriptions that have not acknowledged them.

The process that removes asks, at that moment. A guard names the offset up to which rows may go. A guard that can't
answer raises, and then everything is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from frazil.core.settings import RetentionSettings
    from frazil.log.topic_log import TopicLog

SUBSCRIPTIONS = "subscriptions"
"""The guard that a retention `until_acked` needs: without its word nothing counts as acknowledged."""


class Guard(Protocol):
    @property
    def name(self) -> str:
        """What it guards for, as people read it."""
        ...

    @property
    def holds_rows(self) -> bool:
        """Whether rows below its floor are held elsewhere, as in a table; else what goes is gone."""
        ...

    def concerns(self, log: TopicLog) -> bool:
        """Whether it has a say on this log: answered from settings and local files, at once."""
        ...

    def floor(self, log: TopicLog) -> int:
        """Rows below may go. It may ask a server, and is called in a thread of its own; an exception keeps all."""
        ...

    def close(self) -> None: ...


class Allowed(NamedTuple):
    """What all guards together allow: rows below `floor`, which a table holds if `in_table`, under this policy.

    `guard` is the one that allows least; empty if none keeps anything.
    """

    floor: int
    in_table: bool
    retention: RetentionSettings
    guard: str = ""


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Why rows past their retention are still there: the guard, since when, and the offset up to which it lets go.

    `floor` is None where the guard can't answer; `error` says why.
    """

    guard: str
    since_us: int = field(compare=False)
    floor: int | None
    error: str | None


class GuardFailed(Exception):
    """Which guard could not answer; its cause says why."""

    def __init__(self, guard: str) -> None:
        super().__init__(guard)
        self.guard = guard


def ask(guards: Iterable[Guard], log: TopicLog) -> Allowed:
    """The lowest floor of all guards; the durable end if there is none. `GuardFailed` if one can't answer."""
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
