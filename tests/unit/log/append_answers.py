"""Holds back the committer of a log, and keeps the answers that it gives."""

from __future__ import annotations

import threading
import time

from segment_files import numbers

from frazil import (
    FrazilError,
    Sent,
    Topic,
)
from frazil.log.write.group import Part


class Answers:
    """What `begin_publish_many` tells, by token."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.settled: dict[int, int | FrazilError] = {}
        self.changed = threading.Condition()

    def begin(self, token: int, sequence: int, count: int = 2, producer: str = "p") -> None:
        self.topic.begin_publish_many(numbers(sequence, count), self.tell, token, Sent(producer, 0, sequence))

    def begin_plain(self, token: int) -> None:
        self.topic.begin_publish_many(numbers(900, 1), self.tell, token)

    def tell(self, part: Part) -> None:
        with self.changed:
            for token in part.tokens:
                self.settled[token] = part.first_offset if part.error is None else part.error
            self.changed.notify_all()

    def wait(self, count: int) -> dict[int, int | FrazilError]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.settled) >= count, 30)
        return self.settled


def hold_commits(topic: Topic) -> None:
    """As if a committer were at work, so that nobody takes what is queued; `commit_in_pool` takes it."""
    deadline = time.monotonic() + 30
    while topic.log._committing:  # one that has given its answers looks once more whether there is anything
        assert time.monotonic() < deadline
    topic.log._committing = True


def committer_holds_it(topic: Topic) -> None:
    """What was queued is a group of its own, and its committer waits for the lock that the test has."""
    deadline = time.monotonic() + 30
    while len(topic.log._queue):
        assert time.monotonic() < deadline
