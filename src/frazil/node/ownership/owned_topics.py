"""The owner's side: opens the topics whose records name this broker, gives them away, and discards those of others.

A topic is looked at when something about it has changed. `next_step` says what to do, and it is done until there is
nothing left; after a failure the topic is looked at again, with back-off. A topic that fails stops itself alone.

What this broker serves is decided here alone: it is served from the moment that the metadata store confirmed, after the
topic was opened (and all earlier owners were fenced off by the object store), that its record still names this broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import cast

from frazil.core.backoff import backoff, jittered
from frazil.core.cluster import MoveCounts
from frazil.core.errors import FrazilError, LogFenced, MetadataUnavailable, TopicUnavailable, TryLater
from frazil.core.names import TopicName
from frazil.meta import cluster_keys as keys
from frazil.node.ownership.host import TopicHost
from frazil.node.ownership.records import OwnerChange, OwnershipRecords
from frazil.node.ownership.steps import OpenTopic, Step, next_step
from frazil.node.ownership.view import ClusterView

BACK_OFF_S_MIN, BACK_OFF_S_MAX = 0.2, 10.0

_log = logging.getLogger("frazil.cluster")


class OwnedTopics:
    """Used on one event loop, except `is_served`, `problem_of` and `fenced`, which any thread may call."""

    def __init__(
        self,
        broker_id: str,
        session: str,
        view: ClusterView,
        records: OwnershipRecords,
        host: TopicHost,
        parallel_max: int,
    ) -> None:
        self._broker_id = broker_id
        self._session = session
        self._view = view
        self._records = records
        self._host = host
        self._parallel_max = parallel_max
        self.on_served: Callable[[Collection[TopicName]], None] = _ignore
        """Called with topics that are served from now on."""
        self.counts = MoveCounts()
        self._opened: dict[TopicName, OpenTopic] = {}
        self._served: dict[TopicName, int] = {}
        self._problems: dict[TopicName, str] = {}
        self._fenced: dict[TopicName, LogFenced] = {}
        """Topics whose logs other processes have taken over, until the store of the records says the same."""
        self._tries: dict[TopicName, int] = {}
        self._given_up: dict[TopicName, int] = {}
        """Topics that this broker gave up and kept, each with the revision of the move that accepts the loss."""
        self._leaving: dict[TopicName, str] = {}
        """Topics that this broker gives away by its own decision, and to whom."""
        self._due: dict[TopicName, None] = {}
        self._busy: set[TopicName] = set()
        self._workers: set[asyncio.Task[None]] = set()
        self._again: dict[TopicName, asyncio.TimerHandle] = {}
        self._progress = asyncio.Event()
        self._is_started = False

    # --- queries

    def is_served(self, topic: TopicName) -> bool:
        return topic in self._served

    def served(self) -> Mapping[TopicName, int]:
        """Return the served topics with their epochs; a live mapping."""
        return self._served

    def is_current(self, topic: TopicName) -> bool:
        """Whether the record names this broker, and the topic is not open here from an earlier time.

        Another broker may have had a topic that is open with an earlier epoch, and changed what is stored of it.
        """
        known, opened = self._view.topic(topic), self._opened.get(topic)
        if known is None or known.owner != self._broker_id:
            return False
        return opened is None or (opened.log_id, opened.epoch) == (known.log_id, known.epoch)

    def problem_of(self, topic: TopicName) -> str | None:
        """Return why the topic could not be opened, given away or discarded at the last try."""
        return self._problems.get(topic)

    def fenced(self, topic: TopicName) -> LogFenced | None:
        """Return who has taken over the log of a topic that is not served since."""
        return self._fenced.get(topic)

    def problems(self) -> Mapping[TopicName, str]:
        return dict(self._problems)

    # --- lifecycle

    def start(self) -> None:
        """Look at all topics whose records name this broker, and at all logs in its folder."""
        self._is_started = True
        self.look_at(self._view.owned_by(self._broker_id) | set(self._host.local()))

    async def settled(self) -> None:
        """Wait until nothing is due; topics that failed are tried again later."""
        while self._due or self._busy:
            await self._next_progress()

    async def until_served(self, topic: TopicName) -> None:
        """Wait until a topic that this broker owns is served. Raises `TopicUnavailable` if its opening has failed."""
        await self._records.read(topic)
        self.look_at([topic])
        while topic not in self._served:
            if topic not in self._due and topic not in self._busy:
                raise TopicUnavailable(str(topic), self._problems.get(topic, "it is not owned by this broker"))
            await self._next_progress()

    async def close(self) -> None:
        """Start nothing more, and cancel what is being done: all topics are about to be closed."""
        self._is_started = False
        for timer in self._again.values():
            timer.cancel()
        workers = list(self._workers)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    # --- what to do

    def look_at(self, topics: Collection[TopicName]) -> None:
        if not self._is_started:
            return
        for topic in topics:
            if self._is_concerned(topic):
                self._due[topic] = None
            else:
                self._forget_problem(topic)
            if not self.is_current(topic):
                self._served.pop(topic, None)  # at once, even if all workers are busy
        for _ in range(min(len(self._due), self._parallel_max - len(self._workers))):
            self._workers.add(asyncio.create_task(self._work(), name="topics of this broker"))

    def failed(self, topic: TopicName, error: Exception) -> None:
        """Open a topic again that has failed while it was served, unless another broker owns it by now."""
        if self._opened.pop(topic, None) is not None:
            self._served.pop(topic, None)
            if isinstance(error, LogFenced):
                self._fenced[topic] = error
            self._try_later(topic, error)

    def give(self, topics: Mapping[TopicName, str]) -> None:
        """Give topics away, each to a broker."""
        self._leaving.update(topics)
        self.look_at(topics)

    def is_giving(self, topic: TopicName) -> bool:
        """Whether `give` still tries to give the topic away."""
        return topic in self._leaving

    def _is_concerned(self, topic: TopicName) -> bool:
        if topic in self._opened or topic in self._busy:
            return True
        known = self._view.topic(topic)
        return (known is not None and known.owner == self._broker_id) or topic in self._host.local()

    def _gives_to(self, topic: TopicName) -> str | None:
        move = self._view.move(topic)
        if move is not None and move.problem is None and move.to != self._broker_id:
            return move.to
        return self._leaving.get(topic)

    def _step(self, topic: TopicName) -> Step:
        return next_step(
            self._broker_id,
            self._view.topic(topic),
            self._host.local().get(topic),
            self._opened.get(topic),
            is_served=topic in self._served,
            gives_to=self._gives_to(topic),
        )

    # --- doing it

    async def _work(self) -> None:
        """Work on due topics until none is left."""
        try:
            await self._work_off()
        finally:
            self._workers.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    async def _work_off(self) -> None:
        while (topic := self._next_due()) is not None:
            self._busy.add(topic)
            try:
                await self._do_all(topic)
            except FrazilError as error:
                self._try_later(topic, error)
            except Exception as error:  # noqa: BLE001 - logged; the other topics go on
                _log.exception("%s could not be opened, given away or discarded", topic)
                self._try_later(topic, error)
            else:
                self._forget_problem(topic)
            finally:
                self._busy.discard(topic)
                self._tell()

    def _next_due(self) -> TopicName | None:
        for topic in self._due:
            if topic not in self._busy:
                del self._due[topic]
                return topic
        return None

    async def _do_all(self, topic: TopicName) -> None:
        while self._is_started:
            self._due.pop(topic, None)
            step = self._step(topic)
            if step is Step.NOTHING:
                await self._withdraw_done(topic)
                return
            if not await self._do(step, topic):
                return  # the watch has not seen yet what was read: it will be looked at again

    async def _do(self, step: Step, topic: TopicName) -> bool:
        """Take one step; returns False if the view lags behind what was read."""
        match step:
            case Step.OPEN:
                return await self._open(topic)
            case Step.REOPEN:
                return await self._reopen(topic)
            case Step.GIVE:
                return await self._give(topic)
            case Step.DISCARD:
                return await self._discard(topic)
            case Step.FORGET:
                self._forget(topic)
                self._host.forget(topic)
                await self._records.clear(topic)
            case Step.NOTHING:
                raise AssertionError("there is nothing to do")
        return True

    async def _open(self, topic: TopicName) -> bool:
        found = await self._records.read(topic)
        if found is None:
            return False
        if self._step(topic) is not Step.OPEN:
            return True
        identity, _ = found
        if identity.owner_of(topic) != self._broker_id:
            return False
        epoch = identity.epoch_of(topic)
        try:
            object_epoch = await self._host.open(topic, identity)
        except Exception as error:
            if await self._is_given_up(topic, epoch, error):
                return True
            raise
        log_id = identity.logs[topic].log_id
        self._opened[topic] = OpenTopic(log_id, epoch)
        serving = keys.ServingRecord(self._broker_id, self._session, epoch, log_id or "", object_epoch)
        if await self._records.confirm(topic, serving):
            self._serve(topic)
            self.counts.taken += 1
        return self._view.topic(topic) is not None

    async def _is_given_up(self, topic: TopicName, epoch: int, error: Exception) -> bool:
        """Follow a requested move of a topic that cannot be opened, if the loss of its rows is accepted."""
        move = self._view.move(topic)
        if move is None or move.problem is not None:
            return False
        passes = isinstance(error, TryLater | MetadataUnavailable) and not isinstance(error, TopicUnavailable)
        if passes and move.to == self._broker_id and topic in self._host.local():
            return False  # its rows are here: no loss of them was accepted
        if move.accept_loss:
            revision = self._view.revision(keys.topic_key(keys.MOVES, topic))
            if move.to == self._broker_id and self._given_up.get(topic) == revision:
                return False  # one new epoch is enough: what fails now is something else
            is_made = await self._records.assign([OwnerChange(topic, self._broker_id, epoch, move.to)])
            if is_made and move.to == self._broker_id:
                self._given_up[topic] = revision
            return is_made
        reason = f"its broker {self._broker_id} cannot open it: {error}"
        await self._records.report_problem(topic, replace(move, problem=reason))
        return False

    def _serve(self, topic: TopicName) -> None:
        """Let calls through, unless the topic has failed meanwhile."""
        opened = self._opened.get(topic)
        if opened is not None:
            self._fenced.pop(topic, None)
            self._served[topic] = opened.epoch
            self.on_served([topic])

    async def _reopen(self, topic: TopicName) -> bool:
        """Serve it again, if its record has not changed: whether it was given away may have been unclear."""
        found = await self._records.read(topic)
        if found is None:
            return False
        if self._step(topic) is Step.REOPEN:
            await self._reopen_now(topic)
        return True

    async def _reopen_now(self, topic: TopicName) -> None:
        opened = self._opened.pop(topic, None)  # if it fails, it is opened from the start
        if opened is not None:
            await self._host.reopen(topic)
            self._opened[topic] = replace(opened, is_closed=False)
            self._serve(topic)

    async def _give(self, topic: TopicName) -> bool:
        to = self._gives_to(topic)
        assert to is not None
        if self._view.is_gone(to):
            await self._give_failed(topic, f"there is no broker {to}, or it is gone")
            return True
        if not self._opened[topic].is_closed and not await self._close_to_give(topic, to):
            return True
        to, known = self._gives_to(topic), self._view.topic(topic)
        if to is None or known is None:
            return True  # no caller wants it any more
        try:
            is_given = await self._records.assign([OwnerChange(topic, self._broker_id, known.epoch, to)])
        except MetadataUnavailable as error:
            if not error.unclear:
                await self._reopen_now(topic)
            raise
        self.counts.given += is_given
        return is_given or self._view.topic(topic) != known

    async def _close_to_give(self, topic: TopicName, to: str) -> bool:
        """Upload a topic, and close it; returns False if it stays, or something else is to be done with it by now."""
        try:
            await self._host.upload(topic)
            if self._step(topic) is not Step.GIVE:
                return False
            self._served.pop(topic, None)
            opened = self._opened[topic]
            await self._host.close_and_upload(topic)
        except Exception as error:  # noqa: BLE001 - reported to the caller of the move
            _log.warning("%s could not be given to %s, and stays: %s", topic, to, error)
            if topic not in self._served:
                await self._reopen_now(topic)
            await self._give_failed(topic, str(error))
            return False
        self._opened[topic] = replace(opened, is_closed=True)
        return True

    async def _give_failed(self, topic: TopicName, reason: str) -> None:
        """Report a failure to the caller of the move. A decision of this broker itself is dropped."""
        self._leaving.pop(topic, None)
        self._problems[topic] = reason
        self.counts.failed += 1
        move = self._view.move(topic)
        if move is not None and move.problem is None:
            await self._records.report_problem(topic, replace(move, problem=reason))

    async def _discard(self, topic: TopicName) -> bool:
        """Discard it only by the record as it is now: the view may show an earlier topic of the name."""
        found = await self._records.read(topic)
        if found is None:
            return False
        if self._step(topic) is Step.DISCARD:
            self._served.pop(topic, None)
            await self._host.discard(topic)
            self._forget(topic)
        return True

    def _forget_problem(self, topic: TopicName) -> None:
        self._problems.pop(topic, None)
        self._tries.pop(topic, None)
        self._given_up.pop(topic, None)
        self._fenced.pop(topic, None)

    def _forget(self, topic: TopicName) -> None:
        self._served.pop(topic, None)
        self._opened.pop(topic, None)
        self._leaving.pop(topic, None)

    async def _withdraw_done(self, topic: TopicName) -> None:
        """Remove the request of a move that is done: the topic is served by the broker that was to get it."""
        move = self._view.move(topic)
        if move is not None and move.to == self._broker_id and topic in self._served:
            await self._records.withdraw(topic)

    # --- later

    def _try_later(self, topic: TopicName, error: Exception) -> None:
        tries = self._tries.get(topic, 0)
        self._tries[topic] = tries + 1
        self._problems[topic] = str(error)
        if tries == 0:
            _log.warning("%s is tried again: %s", topic, error)
        self._later(topic, jittered(backoff(tries + 1, first=BACK_OFF_S_MIN, limit=BACK_OFF_S_MAX)))

    def _later(self, topic: TopicName, seconds: float) -> None:
        def again() -> None:
            self._again.pop(topic, None)
            self.look_at([topic])

        if topic not in self._again and self._is_started:
            self._again[topic] = asyncio.get_running_loop().call_later(seconds, again)

    def _tell(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()

    async def _next_progress(self) -> None:
        await self._progress.wait()


def _ignore(_: Collection[TopicName]) -> None:
    pass
