"""What a broker does next with a topic."""

from __future__ import annotations

import pytest

from frazil.node.ownership.host import LocalLog
from frazil.node.ownership.steps import OpenTopic, Step, next_step
from frazil.node.ownership.view import TopicState

MINE, OTHERS = TopicState("me", 5, "log", False), TopicState("other", 6, "log", False)
HERE, OPEN, CLOSED = LocalLog("log", 5), OpenTopic("log", 5), OpenTopic("log", 5, is_closed=True)


@pytest.mark.parametrize(
    ("known", "local", "opened", "is_served", "gives_to", "step"),
    [
        (MINE, HERE, None, False, None, Step.OPEN),
        (MINE, None, None, False, None, Step.OPEN),
        (MINE, HERE, OPEN, False, None, Step.OPEN),  # not confirmed yet
        (MINE, HERE, OPEN, True, None, Step.NOTHING),
        (MINE, HERE, OPEN, True, "other", Step.GIVE),
        (MINE, HERE, OPEN, False, "other", Step.OPEN),
        (MINE, HERE, CLOSED, False, "other", Step.GIVE),
        (MINE, HERE, CLOSED, False, None, Step.REOPEN),
        (OTHERS, HERE, OPEN, True, None, Step.DISCARD),
        (OTHERS, HERE, None, False, None, Step.DISCARD),
        (OTHERS, None, None, False, None, Step.NOTHING),
        (OTHERS, None, OpenTopic(None, 5), True, None, Step.DISCARD),  # without a log
        (None, HERE, OPEN, True, None, Step.FORGET),
        (None, HERE, None, False, None, Step.NOTHING),
    ],
)
def test_next_step(
    known: TopicState | None,
    local: LocalLog | None,
    opened: OpenTopic | None,
    is_served: bool,
    gives_to: str | None,
    step: Step,
) -> None:
    assert next_step("me", known, local, opened, is_served=is_served, gives_to=gives_to) is step


def test_a_folder_of_another_epoch_or_log_is_never_opened() -> None:
    """Another owner may have written since."""
    for stale in (LocalLog("log", 3), LocalLog("former", 5)):
        assert next_step("me", MINE, stale, None, is_served=False, gives_to=None) is Step.DISCARD
    served = next_step("me", MINE, LocalLog("log", 3), OpenTopic("log", 3), is_served=True, gives_to=None)
    assert served is Step.DISCARD


def test_a_topic_that_was_deleted_and_created_again_is_opened_not_discarded() -> None:
    again = next_step("me", MINE, HERE, OpenTopic("former", 1), is_served=True, gives_to=None)
    assert again is Step.OPEN
