"""The leader decides where topics go. Every broker runs this; the one that holds the leader's key acts.

The key only decides who tries. Every change is a compare-and-set on the record of a topic, or a request that the owner
follows; so two leaders would do no harm.

1. Topics of a broker whose session is gone go to other brokers if all their acknowledged rows are in the object store.
   Others wait for their broker, unless a requested move accepts the loss. Drained brokers get them if none is active.
2. Topics of a draining broker move, few at a time.
3. At intervals, topics move to even out the load.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice

from frazil.core.clock import Clock
from frazil.core.cluster import BrokerInfo, PlannedMove
from frazil.core.errors import FrazilError
from frazil.core.names import TopicName
from frazil.core.process.identity import ProcessIdentity
from frazil.core.settings.cluster import ClusterSettings
from frazil.meta import cluster_keys as keys
from frazil.meta.store import MetaStore
from frazil.meta.topic_records import UnreadableRecord
from frazil.node.ownership.calls import MetaCalls
from frazil.node.ownership.moves.plan import next_drained, place, rebalance
from frazil.node.ownership.records import OwnerChange, OwnershipRecords, by_record
from frazil.node.ownership.session_keeper import SessionKeeper
from frazil.node.ownership.view import ClusterView

TICK_S = 1.0
GONE_PART = 8
"""A broker must be gone for this part of the lease. One that lives takes its session again at once: etcd may end
sessions that are alive, as when its leader hung and has seen no keep-alive meanwhile."""
PROBLEM_US = 5_000_000
"""A move of the leader's that failed may be asked for again after this time."""
ASSIGNED_AT_ONCE = 256
BY_LEADER = ""
"""`MoveRecord.by` of moves that no caller waits for."""

_log = logging.getLogger("frazil.cluster")


class Leader:
    """Created and used on one event loop."""

    def __init__(
        self,
        broker_id: str,
        keeper: SessionKeeper,
        view: ClusterView,
        records: OwnershipRecords,
        meta: MetaStore,
        calls: MetaCalls,
        settings: ClusterSettings,
        clock: Clock,
        is_running: Callable[[ProcessIdentity], bool | None] = ProcessIdentity.is_running,
    ) -> None:
        self._broker_id = broker_id
        self._keeper = keeper
        self._view = view
        self._records = records
        self._meta = meta
        self._calls = calls
        self._settings = settings
        self._clock = clock
        self._is_running = is_running
        self._woken = asyncio.Event()
        self._balanced_us = clock.monotonic_us()
        self._failed_since_us: dict[TopicName, int] = {}
        self._gone_since_us: dict[str, int] = {}
        self._next_look_s = TICK_S
        self._left: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="leader of the cluster")

    def wake(self) -> None:
        """Look at the cluster soon: something has changed that may concern the leader."""
        self._woken.set()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def leads(self) -> bool:
        return self._view.leader() == keys.LeaderRecord(self._broker_id, self._keeper.session_id)

    async def _run(self) -> None:
        is_told = False
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._next_look_s):
                    await self._woken.wait()
            self._woken.clear()
            self._next_look_s = TICK_S
            try:
                await self._look()
            except Exception as error:  # noqa: BLE001 - logged, and tried again
                if not is_told:
                    _log.warning(
                        "this broker cannot lead the cluster now: %s; tried again", error, exc_info=_odd(error)
                    )
                is_told = True
                await asyncio.sleep(TICK_S)
            else:
                is_told = False

    async def _look(self) -> None:
        if not await self._has_lead():
            return
        await self._end_sessions(self._view.sessions())
        if self._keeper.held_us >= self._settings.lease_ms * 1_000:
            # Not right after the store was away: the others may have lost their sessions too, and come back.
            await self._fail_over()
        await self._move_of_gone_owners()
        await self._drain()
        await self._drop_failed_moves()
        await self._even_out()

    # --- who leads

    async def _has_lead(self) -> bool:
        """Take the lead if there is no leader."""
        leader = self._view.leader()
        if leader is None:
            lease = self._keeper.lease
            if lease is None:
                return False
            own = keys.LeaderRecord(self._broker_id, self._keeper.session_id)
            revision = self._view.revision(keys.LEADER)
            made = await self._calls.call(lambda: self._meta.put_if(keys.LEADER, own.encode(), revision, lease))
            if made is None:
                return False  # the watch brings the faster broker's record
            self._view.learn(keys.LEADER, own.encode(), made)
            _log.info("this broker leads the cluster")
            return self.leads
        if self.leads:
            return True
        session = self._view.session(leader.broker)
        await self._end_sessions({} if session is None else {leader.broker: session})
        return False

    async def _end_sessions(self, sessions: Mapping[str, keys.SessionRecord]) -> None:
        """End the sessions of dead processes of this machine: their leases need not be waited for."""
        for broker_id, one in sessions.items():
            if broker_id == self._broker_id or one.process is None:
                continue
            if self._is_running(one.process) is False:
                _log.warning("the broker %s (%s) is dead", broker_id, one.process)
                key = keys.BROKERS + broker_id
                await self._calls.call(lambda key=key, at=one.revision: self._meta.delete(key, at))  # type: ignore[misc]

    # --- topics of brokers that are gone

    async def _fail_over(self) -> None:
        orphans = self._view.failing_over(self._gone_for_long())
        if not orphans:
            return
        placed = place(orphans, self._view.takers(former=""), self._view.load_of)
        changes = [one for topic, to in placed.items() if (one := self._change_to(topic, to)) is not None]
        if changes:
            _log.warning("%d topics of brokers that are gone get other owners", len(changes))
        groups = iter(by_record(changes).values())
        while some := list(islice(groups, ASSIGNED_AT_ONCE)):
            made = await asyncio.gather(*(self._records.assign(group) for group in some), return_exceptions=True)
            for outcome in made:
                if isinstance(outcome, UnreadableRecord):
                    self._leave(outcome)
                elif isinstance(outcome, BaseException):
                    raise outcome  # the others are assigned; with the next look, the rest is

    def _gone_for_long(self) -> list[str]:
        now_us, least_us = self._clock.monotonic_us(), self._settings.lease_ms * 1_000 // GONE_PART
        self._gone_since_us = {one: self._gone_since_us.get(one, now_us) for one in self._view.gone_owners()}
        found = [one for one, since_us in self._gone_since_us.items() if now_us - since_us >= least_us]
        if len(found) < len(self._gone_since_us):
            self._next_look_s = least_us / 1e6
        return found

    def _change_to(self, topic: TopicName, to: str) -> OwnerChange | None:
        known = self._view.topic(topic)
        return None if known is None else OwnerChange(topic, known.owner, known.epoch, to)

    async def _move_of_gone_owners(self) -> None:
        """Follow the requests that a gone owner cannot follow, and drop those of deleted topics."""
        for topic, move in self._view.moves().items():
            try:
                await self._follow_move(topic, move)
            except UnreadableRecord as error:
                self._leave(error)

    async def _follow_move(self, topic: TopicName, move: keys.MoveRecord) -> None:
        known = self._view.topic(topic)
        if known is None:
            await self._records.clear(topic)
        elif self._view.is_gone(known.owner) and known.owner != move.to and move.problem is None:
            problem = None
            if self._view.is_gone(move.to):
                problem = f"there is no broker {move.to}, or it is gone"
            elif not (known.fails_over or move.accept_loss):
                problem = f"rows of it are only on the disk of the broker {known.owner}, which is gone"
            if problem is None:
                await self._records.assign([OwnerChange(topic, known.owner, known.epoch, move.to)])
            else:
                await self._records.report_problem(topic, replace(move, problem=problem))

    def _leave(self, error: UnreadableRecord) -> None:
        """Leave a topic whose record can't be read: the others do not wait for it. Each reason is logged once."""
        if error.message not in self._left:
            self._left.add(error.message)
            _log.error("a topic of a broker that is gone is left as it is: %s", error)

    # --- requested moves

    async def _drain(self) -> None:
        for broker_id, member in self._view.draining().items():
            if self._view.is_gone(broker_id):
                continue
            topics, moving = self._view.owned_by(broker_id), self._view.moves()
            due = next_drained(topics, moving, member.parallel_max)
            placed = place(due, self._view.targets(), self._view.load_of)
            for topic, to in placed.items():
                await self._records.request(topic, keys.MoveRecord(to, BY_LEADER))

    async def _drop_failed_moves(self) -> None:
        """Withdraw failed moves that no caller waits for, so that they can be requested again."""
        now_us, moves = self._clock.monotonic_us(), self._view.moves()
        failed = {topic for topic, move in moves.items() if move.problem is not None}
        self._failed_since_us = {topic: self._failed_since_us.get(topic, now_us) for topic in failed}
        for topic, since_us in self._failed_since_us.items():
            by = moves[topic].by
            if now_us - since_us >= PROBLEM_US and (by == BY_LEADER or self._view.is_gone(by)):
                await self._records.withdraw(topic)

    async def _even_out(self) -> None:
        now_us = self._clock.monotonic_us()
        if now_us - self._balanced_us < self._settings.rebalance_interval_ms * 1_000:
            return
        self._balanced_us = now_us
        if self._settings.rebalance:
            threshold, most = self._settings.rebalance_threshold, self._settings.rebalance_moves_max
            for move in planned(self._view, threshold, most):
                await self._records.request(move.topic, keys.MoveRecord(move.to_broker, BY_LEADER))


def planned(view: ClusterView, threshold: float, moves_max: int) -> list[PlannedMove]:
    """Plan moves that even the load out, beside those that are already requested."""
    moving = view.moves()
    return rebalance(
        view.balance(),
        view.owned_by,
        view.load_of,
        threshold=threshold,
        moves_max=max(0, moves_max - len(moving)),
        is_target=_has_doors,
        fixed=moving,
    )


def _has_doors(broker: BrokerInfo) -> bool:
    return bool(broker.addresses)


def _odd(error: Exception) -> Exception | None:
    """Return the error if it is a mistake of this program, to be logged as a whole."""
    return None if isinstance(error, FrazilError) else error
