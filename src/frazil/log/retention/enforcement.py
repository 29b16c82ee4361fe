"""Enforce retention: ask the guards, only for logs with something to remove, and never in a thread that others wait
for.

A guard may query a catalog or a metadata store that hangs. So logs with the same guards share one thread, and no other
log waits for it. An answer that took too long is discarded. A log whose guards keep everything, or cannot answer, is
retried with back-off.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from frazil.core.clock import Clock
from frazil.core.errors import FrazilError
from frazil.log.retention.guards import Allowed, Guard, GuardFailed, RetentionHold, ask
from frazil.log.topic_log import TopicLog

ANSWER_MS_MAX = 30_000
"""An older answer is stale and is discarded."""
AGAIN_MS_MIN = 5_000
AGAIN_MS_MAX = 60_000
CLOSE_SECONDS_MAX = 1.0
"""A hanging guard is abandoned: its thread is a daemon, and a closed log removes nothing."""

_log = logging.getLogger("frazil.log")


class GuardProblem(NamedTuple):
    """A topic whose expired rows are kept because a guard cannot answer, and the reason."""

    topic: str
    guard: str
    since_us: int
    error: dict[str, Any]

    @property
    def message(self) -> str:
        return str(self.error["message"])


@dataclass(slots=True, eq=False)
class GuardQuery:
    """One log, and the guards that apply to it."""

    log: TopicLog
    guards: tuple[Guard, ...]
    delay_ms: int = 0
    again_us: int = 0
    begun_us: int | None = None
    answered: threading.Event = field(default_factory=threading.Event)


class GuardedRetention:
    """Asks all guards at the moment of deletion, in the process that deletes."""

    def __init__(self, clock: Clock, guards: Iterable[Guard] = ()) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._removing = threading.Lock()
        """Held from the last look at the guards to the end of a removal; taken before `_lock`."""
        self._questions: dict[str, GuardQuery] = {}
        self._kept: dict[str, GuardProblem] = {}
        self._workers: dict[tuple[str, ...], _Worker] = {}
        self._closed = False
        self._guards = tuple(guards)

    @property
    def guards(self) -> tuple[Guard, ...]:
        return self._guards

    def add(self, guard: Guard) -> None:
        """Once this returns, no row is removed that the guard was not asked about."""
        with self._removing, self._lock:
            self._guards = (*self._guards, guard)

    def remove(self, guard: Guard) -> None:
        with self._lock:
            self._guards = tuple(one for one in self._guards if one is not guard)

    def enforce(self, log: TopicLog, *, now: bool = False) -> GuardQuery | None:
        """Remove expired rows once all guards agree, without waiting for them.

        Returns the pending question. `now` asks even if the log's next check is not due.
        """
        if not log.has_expired():
            log.held_back = None
            self._settled(log)
            return None
        try:
            guards = tuple(guard for guard in self._guards if guard.concerns(log))
        except (OSError, FrazilError) as error:
            self._keep(log, "folder", error)
            return None
        if not guards:
            self._settled(log)
            self._remove(log, allowed := ask((), log), ())
            self._note_held(log, allowed)
            return None
        return self._asked(log, guards, now=now)

    def problems(self) -> list[GuardProblem]:
        """Return topics whose expired rows are kept because a guard cannot answer or has not answered for long."""
        now_us = self._clock.monotonic_us()
        with self._lock:
            found = dict(self._kept)
            for log_id, one in self._questions.items():
                silent_ms = 0 if one.begun_us is None else (now_us - one.begun_us) // 1_000
                if silent_ms > AGAIN_MS_MIN and log_id not in found:
                    names = ", ".join(guard.name for guard in one.guards)
                    error = {"error": "no_answer", "message": f"no answer for {silent_ms // 1_000} s"}
                    found[log_id] = GuardProblem(str(one.log.name), names, self._clock.now_us(), error)
        return sorted(found.values())

    def forget(self, log: TopicLog) -> None:
        """Forget a deleted topic."""
        with self._lock:
            self._questions.pop(log.log_id, None)
            self._kept.pop(log.log_id, None)

    def close(self) -> None:
        """Stop asking. A hanging guard is not waited for."""
        with self._lock:
            self._closed = True
            workers, asked = list(self._workers.values()), list(self._questions.values())
        for worker in workers:
            worker.queue.put(None)
        for worker in workers:
            worker.thread.join(CLOSE_SECONDS_MAX)
        for question in asked:
            question.answered.set()  # nothing waits for a hanging guard
        if not any(worker.thread.is_alive() for worker in workers):
            for guard in self._guards:
                guard.close()

    def _asked(self, log: TopicLog, guards: tuple[Guard, ...], *, now: bool) -> GuardQuery | None:
        with self._lock:
            before = self._questions.get(log.log_id)
            if before is not None and not before.answered.is_set():
                return before
            if self._closed or (before is not None and not now and self._clock.monotonic_us() < before.again_us):
                return None
            question = GuardQuery(log, guards, before.delay_ms if before is not None else 0)
            self._questions[log.log_id] = question
            names = tuple(guard.name for guard in guards)
            worker = self._workers.get(names)
            if worker is None:
                worker = self._workers[names] = _Worker(self)
        worker.queue.put(question)
        return question

    def answer(self, question: GuardQuery) -> None:
        """Ask the guards and act on the answer, in the thread shared by logs with the same guards."""
        log = question.log
        question.begun_us = self._clock.monotonic_us()
        removed = 0
        try:
            allowed = ask(question.guards, log)
            took_ms = (self._clock.monotonic_us() - question.begun_us) // 1_000
            if took_ms > ANSWER_MS_MAX:
                raise FrazilError(f"the answer took {took_ms} ms, and more than {ANSWER_MS_MAX} ms is too old")
        except GuardFailed as failed:
            self._keep(log, failed.guard, failed.__cause__ or failed)
        except FrazilError as error:
            self._keep(log, ", ".join(guard.name for guard in question.guards), error)
        else:
            self._settled(log)
            removed = self._remove(log, allowed, question.guards)
            self._note_held(log, allowed)
        finally:
            question.delay_ms = AGAIN_MS_MIN if removed else min(AGAIN_MS_MAX, max(AGAIN_MS_MIN, 2 * question.delay_ms))
            question.again_us = 0 if removed else self._clock.monotonic_us() + question.delay_ms * 1_000
            question.begun_us = None
            question.answered.set()

    def _remove(self, log: TopicLog, allowed: Allowed, asked: tuple[Guard, ...]) -> int:
        """Remove nothing if a guard was added since the others were asked: all of them are asked again."""
        try:
            with self._removing:
                if any(guard not in asked and guard.concerns(log) for guard in self._guards):
                    return 0
                removed = log.remove_expired(allowed)
        except (OSError, FrazilError) as error:  # other topics are still processed
            _log.warning("maintenance of %s failed, and is retried: %s", log.name, error)
            return 0
        if removed:
            _log.info("removed %d bytes of %s, past its retention", removed, log.name)
        return removed

    def _note_held(self, log: TopicLog, allowed: Allowed) -> None:
        """Record which guard holds expired rows: the one that allows least."""
        if not allowed.guard or not log.has_expired():
            log.held_back = None
            return
        before = log.held_back
        same = before is not None and before.error is None and before.guard == allowed.guard
        since_us = before.since_us if before is not None and same else self._clock.now_us()
        log.held_back = RetentionHold(allowed.guard, since_us, allowed.floor, None)

    def _keep(self, log: TopicLog, guard: str, error: BaseException) -> None:
        """Log each reason once, however many topics it affects."""
        described = error.as_dict() if isinstance(error, FrazilError) else {"error": "internal", "message": repr(error)}
        with self._lock:
            before = self._kept.get(log.log_id)
            known = any(one.guard == guard and one.error == described for one in self._kept.values())
            same = before is not None and before.guard == guard and before.error == described
            since_us = before.since_us if before is not None and same else self._clock.now_us()
            self._kept[log.log_id] = GuardProblem(str(log.name), guard, since_us, described)
            log.held_back = RetentionHold(guard, since_us, None, str(described["message"]))
        if not known:
            level = logging.WARNING if isinstance(error, FrazilError | OSError) else logging.ERROR
            trace = None if isinstance(error, FrazilError | OSError) else error
            _log.log(
                level, "%s is kept past its retention: its %s can't answer: %s", log.name, guard, described["message"],
                exc_info=trace, extra={"topic": str(log.name)},
            )  # fmt: skip

    def _settled(self, log: TopicLog) -> None:
        with self._lock:
            self._kept.pop(log.log_id, None)
            before = self._questions.get(log.log_id)
            if before is not None and before.answered.is_set() and before.again_us == 0:
                del self._questions[log.log_id]


class _Worker:
    """One thread for all logs with the same guards; it starts with the first of them."""

    def __init__(self, retention: GuardedRetention) -> None:
        self.queue: queue.SimpleQueue[GuardQuery | None] = queue.SimpleQueue()
        self._retention = retention
        self.thread = threading.Thread(target=self._work, name="frazil-retention", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        while (question := self.queue.get()) is not None:
            try:
                self._retention.answer(question)
            except Exception:  # noqa: BLE001 - one topic must not end retention of the others; it is logged
                _log.exception("retention of %s failed; it is retried", question.log.name)


def wait_for(questions: Iterable[GuardQuery], seconds_max: float, clock: Clock) -> None:
    """Wait until all are answered, or until the timeout."""
    end_us = clock.monotonic_us() + int(seconds_max * 1e6)
    for question in questions:
        question.answered.wait(max(0.0, (end_us - clock.monotonic_us()) / 1e6))
