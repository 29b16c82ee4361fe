"""The regular maintenance of a storage: rotation by age, retention, and the record of the logs' ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from frazil.core.errors import FrazilError
from frazil.log.context import LogContext
from frazil.log.retention.enforcement import GuardedRetention, GuardQuery, wait_for
from frazil.log.topic import Topic
from frazil.log.uninterrupted import uninterrupted

INTERVAL_MS, WAIT_SECONDS_MAX = 5_000, 60.0

_log = logging.getLogger("frazil.log")


class LogMaintenance:
    def __init__(
        self,
        context: LogContext,
        retention: GuardedRetention,
        opened: Callable[[], Sequence[Topic]],
        folder: Callable[[], None],
    ) -> None:
        """`opened` returns the open topics; `folder` maintains what is not of a single topic."""
        self._context = context
        self._retention = retention
        self._opened = opened
        self._folder = folder

    def start(self) -> None:
        self._context.keeper.call_in(INTERVAL_MS, self._run_again)

    def run_now(self) -> None:
        """Maintain all open topics now, and wait for the guards of what is removed, with a limit."""
        wait_for(uninterrupted(lambda: self.run(now=True)), WAIT_SECONDS_MAX, self._context.clock)

    def run(self, *, now: bool) -> list[GuardQuery]:
        asked = []
        for topic in self._opened():
            if topic.log.is_idle:
                continue
            try:
                removed = topic.log.maintain()
                if (question := self._retention.enforce(topic.log, now=now)) is not None:
                    asked.append(question)
            except (OSError, FrazilError) as error:  # other topics are still processed
                _log.warning("maintenance of %s failed, and is retried: %s", topic.name, error)
            else:
                if removed:
                    _log.info("removed %d bytes of %s, past its retention", removed, topic.name)
        self._folder()
        return asked

    def _run_again(self) -> None:
        try:
            self.run(now=False)
        finally:
            self.start()
