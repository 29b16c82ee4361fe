"""What a broker does next with one topic: a pure function of the topic's record and of what this broker has of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from frazil.node.ownership.host import LocalLog
from frazil.node.ownership.view import TopicState


class Step(enum.Enum):
    NOTHING = enum.auto()
    OPEN = enum.auto()
    REOPEN = enum.auto()
    """Serve a topic again that was closed to be given away."""
    GIVE = enum.auto()
    """Close the topic, upload it, and name another owner."""
    DISCARD = enum.auto()
    """Close a topic that another broker owns, or a log that is not that of the record, and remove its folder."""
    FORGET = enum.auto()
    """The topic has been deleted."""


@dataclass(frozen=True, slots=True)
class OpenTopic:
    """A topic that `TopicHost.open` has opened."""

    log_id: str | None
    epoch: int
    is_closed: bool = False
    """Whether `TopicHost.close_and_upload` has closed it since."""


def next_step(
    broker_id: str,
    known: TopicState | None,
    local: LocalLog | None,
    opened: OpenTopic | None,
    *,
    is_served: bool,
    gives_to: str | None,
) -> Step:
    """`local` is the topic's log in the folder of this broker; `gives_to` names the broker that is to get the topic."""
    if known is None:
        return Step.NOTHING if opened is None else Step.FORGET
    if known.owner != broker_id:
        return Step.NOTHING if opened is None and local is None else Step.DISCARD
    present = (known.log_id, known.epoch)
    is_current = local is None or (local.log_id, local.epoch) == present
    if opened is None or (opened.log_id, opened.epoch) != present:
        return Step.OPEN if is_current else Step.DISCARD
    if gives_to is not None and (is_served or opened.is_closed):
        return Step.GIVE
    if opened.is_closed:
        return Step.REOPEN
    return Step.NOTHING if is_served else Step.OPEN
