"""Moves that somebody waits for: of one topic, of all topics of a broker, or such as even out the load."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from frazil.core.cluster import BrokerState, DrainReport, PlannedMove
from frazil.core.errors import BrokerNotFound, FrazilError, LossNotAccepted, TopicNotFound, TopicUnavailable
from frazil.core.names import TopicName
from frazil.meta import cluster_keys as keys
from frazil.node.ownership.moves.leader import planned
from frazil.node.ownership.moves.plan import least_loaded
from frazil.node.ownership.records import OwnershipRecords
from frazil.node.ownership.view import ClusterView

MOVE_MS_MAX = 60_000
DRAIN_MS_MAX = 3_600_000
CHECK_S = 1.0
"""How often a waiting call looks whether it can still succeed, even if nothing changes."""
MOVES_MAX = 10_000


class MoveRequests:
    """Used on one event loop."""

    def __init__(
        self, broker_id: str, view: ClusterView, records: OwnershipRecords, serves: Callable[[TopicName], bool]
    ) -> None:
        """`serves` says whether this broker serves a topic."""
        self._broker_id = broker_id
        self._view = view
        self._records = records
        self._serves = serves
        self._changed = asyncio.Event()
        self._topic_changed: dict[TopicName, asyncio.Event] = {}
        """For calls that wait for one topic."""

    def changed(self, topics: Collection[TopicName] = ()) -> None:
        """Let calls look again that wait for these topics, and those that wait for many or for brokers."""
        self._changed.set()
        self._changed = asyncio.Event()
        for topic in self._topic_changed.keys() & set(topics):
            self._topic_changed.pop(topic).set()

    async def move(self, topic: TopicName, to: str | None, *, accept_loss: bool) -> None:
        """See `Ownership.move`."""
        if self._view.topic(topic) is None and await self._records.read(topic) is None:
            raise TopicNotFound(str(topic))
        if to is not None:
            await self._records.look_for(to)
        target = self._target(topic, to, accept_loss=accept_loss)
        if self._is_at(topic, target):
            return
        known = self._view.topic(topic)
        if known is None:
            raise TopicNotFound(str(topic))
        if self._view.is_gone(known.owner) and not (known.fails_over or accept_loss):
            raise LossNotAccepted(str(topic), known.owner)
        if known.owner != target or accept_loss:
            await self._request(topic, keys.MoveRecord(target, self._broker_id, accept_loss))
        await self._until_there(topic, target)

    async def drain(self, broker_id: str, timeout_ms: int | None, parallel_max: int) -> DrainReport:
        """See `Ownership.drain`. The leader asks for the moves: this call may end before they do."""
        topics = self._view.owned_by(broker_id)
        if self._view.is_gone(broker_id) and not topics:
            raise BrokerNotFound(broker_id)
        member = keys.MemberRecord(BrokerState.DRAINING, parallel_max)
        await self._records.put(keys.MEMBERS + broker_id, member.encode())
        failed: dict[TopicName, str] = {}

        def is_done() -> bool:
            left = self._left(topics, broker_id)
            for topic in left:
                problem = self._problem_of_drained(topic, broker_id)
                if problem is not None:
                    failed[topic] = problem
            return left <= failed.keys()

        await self._until(is_done, DRAIN_MS_MAX if timeout_ms is None else timeout_ms)
        left = self._left(topics, broker_id)
        reasons = {str(topic): problem for topic, problem in sorted(failed.items()) if topic in left}
        return DrainReport(broker_id, len(topics), len(topics) - len(left), reasons)

    async def activate(self, broker_id: str) -> None:
        """See `Ownership.activate`."""
        if self._view.is_gone(broker_id) and self._view.member(broker_id) is None:
            raise BrokerNotFound(broker_id)
        await self._records.delete(keys.MEMBERS + broker_id)
        await self._until(lambda: self._view.member(broker_id) is None, MOVE_MS_MAX)

    async def rebalance(self, *, dry_run: bool, moves_max: int | None) -> list[PlannedMove]:
        """See `Ownership.rebalance`. The threshold of the settings is for automatic moves."""
        moves = planned(self._view, 0.0, MOVES_MAX if moves_max is None else moves_max)
        if dry_run:
            return moves
        outcomes = await asyncio.gather(*(self._make(move) for move in moves))
        return [move for move, is_made in zip(moves, outcomes, strict=True) if is_made]

    async def _make(self, move: PlannedMove) -> bool:
        try:
            await self.move(move.topic, move.to_broker, accept_loss=False)
        except FrazilError:
            return False  # the topic stays; its owner has reported why
        return True

    # --- one move

    def _target(self, topic: TopicName, to: str | None, *, accept_loss: bool) -> str:
        if to is not None:
            if self._view.is_gone(to):
                raise BrokerNotFound(to, "or it is gone; see `frazil brokers list`")
            return to
        known = self._view.topic(topic)
        if known is not None and self._view.is_gone(known.owner):
            others = self._view.takers(known.owner)
        else:
            others = [one for one in self._view.targets() if known is None or one.broker_id != known.owner]
        target = least_loaded(others)
        if target is None and accept_loss and known is not None and not self._view.is_gone(known.owner):
            return known.owner  # which goes on without what it has lost
        if target is None:
            raise TopicUnavailable(str(topic), "there is no other active broker that could serve it")
        return target.broker_id

    def _is_at(self, topic: TopicName, broker_id: str) -> bool:
        if broker_id == self._broker_id:
            return self._serves(topic)
        serving = self._view.serving(topic)
        return serving is not None and serving.broker == broker_id

    async def _request(self, topic: TopicName, move: keys.MoveRecord) -> None:
        """Ask for the move, in place of a failed one. One that is under way goes first; the same one is joined."""
        for _ in range(2):
            if await self._records.request(topic, move):
                return
            await self._until(lambda: self._view.move(topic) is not None, MOVE_MS_MAX, topic)
            pending = self._view.move(topic)
            if pending is None:
                continue
            if (pending.to, pending.accept_loss, pending.problem) == (move.to, move.accept_loss, None):
                return  # somebody else wants the same, or this caller has lost the answer of an earlier call
            if self._is_needed(topic, pending):
                if not move.accept_loss:
                    break
            elif pending.problem is None and not self._view.is_gone(pending.by):
                continue
            await self._records.withdraw(topic)
        raise TopicUnavailable(str(topic), "another move of it is under way; try again when it has ended")

    def _is_needed(self, topic: TopicName, move: keys.MoveRecord) -> bool:
        """Whether the new owner has still to learn from the request that a loss was accepted: it removes it then."""
        known = self._view.topic(topic)
        return move.accept_loss and known is not None and known.owner == move.to

    async def _until_there(self, topic: TopicName, target: str) -> None:
        def has_ended() -> bool:
            known, move = self._view.topic(topic), self._view.move(topic)
            is_refused = move is not None and move.problem is not None
            is_over = is_refused or known is None or self._view.is_gone(target) or self._is_withdrawn(topic, target)
            return is_over or self._is_at(topic, target)

        await self._until(has_ended, MOVE_MS_MAX, topic)
        if self._is_withdrawn(topic, target):  # or the watch of requests is ahead of that of records
            if await self._records.read(topic) is None:
                raise TopicNotFound(str(topic))
            await self._until(has_ended, MOVE_MS_MAX, topic)
        if self._is_at(topic, target):
            return
        move = self._view.move(topic)
        if move is not None and move.by == self._broker_id and not self._is_needed(topic, move):
            await self._records.withdraw(topic)
        if self._view.topic(topic) is None:
            raise TopicNotFound(str(topic))
        reason = f"the broker {target} does not serve it after {MOVE_MS_MAX // 1_000} s"
        if self._view.is_gone(target):
            reason = f"the broker {target} is gone"
        elif move is not None and move.problem is not None:
            reason = f"it could not be moved: {move.problem}"
        elif self._is_withdrawn(topic, target):
            reason = "the request to move it was withdrawn, or another took its place; try again"
        raise TopicUnavailable(str(topic), reason)

    def _is_withdrawn(self, topic: TopicName, target: str) -> bool:
        """Whether nobody moves the topic to its target any more. Its owner changes before its request goes."""
        known, move = self._view.topic(topic), self._view.move(topic)
        return known is not None and known.owner != target and (move is None or move.to != target)

    # --- a drain

    def _left(self, topics: Collection[TopicName], broker_id: str) -> set[TopicName]:
        """Return those that the broker still has, or that their new owner does not serve yet."""
        left = set()
        for topic in topics:
            known = self._view.topic(topic)
            if known is not None and (known.owner == broker_id or self._view.serving(topic) is None):
                left.add(topic)
        return left

    def _problem_of_drained(self, topic: TopicName, broker_id: str) -> str | None:
        known, move = self._view.topic(topic), self._view.move(topic)
        if move is not None and move.problem is not None:
            return move.problem
        if known is None or known.owner != broker_id:
            return None
        if not any(one.broker_id != broker_id for one in self._view.targets()):
            return "there is no other active broker"
        if self._view.is_gone(broker_id) and not known.fails_over:
            return f"rows of it are only on the disk of the broker {broker_id}, which is gone"
        return None

    async def _until(self, is_done: Callable[[], bool], timeout_ms: int, topic: TopicName | None = None) -> None:
        """Wait until it is done, or the time is up. With a topic, changes of other topics do not wake the caller."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + timeout_ms / 1_000
        while not is_done() and (left_s := ends - loop.time()) > 0:
            changed = self._changed if topic is None else self._topic_changed.setdefault(topic, asyncio.Event())
            try:
                async with asyncio.timeout(min(left_s, CHECK_S)):
                    await changed.wait()
            except TimeoutError:
                continue
