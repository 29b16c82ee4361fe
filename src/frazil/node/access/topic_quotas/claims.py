"""Claims: a principal is recorded as the creator of a topic, within its quota, before the topic is created.

Each partition counts as one topic. Partitions that are added to a topic are charged to its creator. What this process
itself creates counts for no quota.

    begin       check the quota and store the record
    end         complete the record with the ids of the new logs; or restore the one before, if nothing was created

Claims in progress count, so concurrent calls do not exceed the quota together. An error that names a topic that the
caller may not describe is replaced, see `frazil.node.access.hidden`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import operator
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from frazil.core import access
from frazil.core.access import Action, Right
from frazil.core.errors import FrazilError, QuotaExceeded, TopicExists, TopicNotFound
from frazil.core.names import TopicName
from frazil.core.principal import LOCAL, Principal
from frazil.log.storage import Storage
from frazil.log.topic_log import TopicLog
from frazil.meta.topic_records import creator_key
from frazil.node.access.directory import AccessDirectory
from frazil.node.access.gate import Gate
from frazil.node.access.hidden import refused, topic_in_the_way
from frazil.node.access.quotas import Quotas
from frazil.node.access.topic_quotas.creators import Creator

_log = logging.getLogger("frazil.access")

Elsewhere = Callable[[TopicName], Mapping[TopicName, str | None]]
"""Returns those of a topic and its partitions that other brokers own, with the ids of their logs."""


def no_topic(_: TopicName) -> Mapping[TopicName, str | None]:
    return {}


Family = Callable[[TopicName], set[TopicName]]
"""Returns the existing ones of a topic and its partitions, including non-reliable ones."""


@dataclass(slots=True, eq=False)
class CreationClaim:
    """Topics that are being created, and the principal that they are charged to."""

    base: TopicName
    principal: str
    names: tuple[TopicName, ...]
    stored: bytes | None = None
    """The record during the creation; None if the base topic exists and keeps its record."""
    before: bytes | None = None
    """The record that it replaced."""


class TopicClaims:
    """Thread-safe. All calls block on the metadata store."""

    def __init__(
        self,
        directory: AccessDirectory,
        quotas: Quotas,
        storage: Storage,
        family: Family,
        gate: Gate,
        elsewhere: Elsewhere = no_topic,
    ) -> None:
        self._directory = directory
        self._quotas = quotas
        self._storage = storage
        self._family = family
        self._gate = gate
        self._elsewhere = elsewhere
        self._guard = threading.Lock()
        self._pending: set[CreationClaim] = set()

    @contextlib.contextmanager
    def creating(self, who: Principal, names: Sequence[TopicName]) -> Iterator[None]:
        """Claim topics, all of one base topic, that the block creates; raises `QuotaExceeded`."""
        try:
            with self._claimed(who, names):
                yield
        except FrazilError as error:
            if (instead := self.instead_of(error, who, names)) is not None:
                raise instead from None
            raise

    @contextlib.asynccontextmanager
    async def creating_on_loop(self, who: Principal, names: Sequence[TopicName]) -> AsyncIterator[None]:
        """The same from an event loop."""
        try:
            async with self._claimed_on_loop(who, names):
                yield
        except FrazilError as error:
            if (instead := await asyncio.to_thread(self.instead_of, error, who, names)) is not None:
                raise instead from None
            raise

    @contextlib.contextmanager
    def _claimed(self, who: Principal, names: Sequence[TopicName]) -> Iterator[None]:
        claim = self.begin(who, names)
        try:
            yield
        except BaseException as error:
            self.end(claim, error)
            raise
        self.end(claim)

    @contextlib.asynccontextmanager
    async def _claimed_on_loop(self, who: Principal, names: Sequence[TopicName]) -> AsyncIterator[None]:
        beginning = asyncio.ensure_future(asyncio.to_thread(self.begin, who, names))
        try:
            claim = await asyncio.shield(beginning)
        except asyncio.CancelledError:  # the thread continues; its record is stale, and the next creation replaces it
            beginning.add_done_callback(self._abandon)
            raise
        try:
            yield
        except BaseException as error:
            await asyncio.shield(asyncio.to_thread(self.end, claim, error))
            raise
        await asyncio.shield(asyncio.to_thread(self.end, claim))

    def instead_of(self, error: FrazilError, who: Principal, names: Sequence[TopicName]) -> FrazilError | None:
        """Return the error that replaces one which names a topic that the caller may not describe."""
        base = access.topic(str(names[0]))
        found = topic_in_the_way(error)
        if isinstance(error, QuotaExceeded) and error.fields["principal"] != who.name:
            found = base  # of the principal that has created it
        if found is None or self._gate.allows(who, Action.DESCRIBE, found):
            return None
        try:
            with self._guard:
                self._check(CreationClaim(names[0].partition_of()[0], who.name, tuple(names)), who)
        except QuotaExceeded as full:  # a free name would be refused for it: no name can be tried without a trace
            return full
        return refused(self._gate, who, Right(Action.CREATE, base), error)

    def begin(self, who: Principal, names: Sequence[TopicName]) -> CreationClaim | None:
        """Check the quota and store the record; None if the topics count for no quota."""
        base = names[0].partition_of()[0]
        there = self._family(base) | self._elsewhere(base).keys()
        new = tuple(name for name in names if name not in there)
        if not new:
            return None  # what exists is opened, or refused
        known = self._directory.creators.of_topic(base)
        is_kept = known is not None and bool(self.logs_of(known))
        if who is LOCAL:
            if known is not None and not is_kept:  # of a topic that is gone
                self._directory.change(creator_key(base), lambda _: None)
            return None
        if known is not None and is_kept and known.topic != base:
            return None  # the creation is refused: the names differ only in case
        claim = CreationClaim(base, known.principal if known is not None and is_kept else who.name, new)
        with self._guard:
            self._check(claim, who)
            self._pending.add(claim)
        try:
            if not is_kept:
                self._store(claim)
        except BaseException:
            self._release(claim)
            raise
        return claim

    def end(self, claim: CreationClaim | None, error: BaseException | None = None) -> None:
        """Complete the record if the topics exist, otherwise restore the one before. Never fails: the topic decides."""
        if claim is None:
            return
        try:
            made = {} if isinstance(error, TopicExists) else self._ids(claim)
            if made:
                self._complete(claim, made)
            elif claim.stored is not None:
                self._restore(claim)
        except FrazilError as problem:  # a record without logs is charged as long as the topic exists
            _log.warning("the record of the creator of %s is not complete: %s", claim.base, problem)
        finally:
            self._release(claim)

    def logs_of(self, creator: Creator) -> dict[TopicName, TopicLog | None]:
        """Return the existing topics of a record, with their logs: none for a topic without one, or elsewhere."""
        found: dict[TopicName, TopicLog | None] = {}
        stored = self._storage.family(creator.topic)
        for name in self._family(creator.topic):
            try:
                log = self._storage.topic(str(name), create=False).log if name in stored else None
            except TopicNotFound:
                continue  # deleted since
            except (FrazilError, OSError):  # it exists, but its log cannot be opened
                found[name] = None
            else:
                if creator.made(name, partial(is_of_log, log)):
                    found[name] = log
        for name, log_id in self._elsewhere(creator.topic).items():
            if creator.made(name, partial(operator.eq, log_id)):
                found[name] = None
        return found

    def _check(self, claim: CreationClaim, who: Principal) -> None:
        owner = Principal(claim.principal)
        if self._quotas.limits(owner).topics is None:
            return
        names = {name for one in self._directory.creators.of_principal(owner.name) for name in self.logs_of(one)}
        for other in self._pending:
            if other.principal == owner.name:
                names.update(other.names)
        shown = None if owner.name == who.name else f"the creator of {claim.base}"
        self._quotas.check_topic(owner, len(names - set(claim.names)), len(claim.names), shown)

    def _store(self, claim: CreationClaim) -> None:
        claim.stored = Creator(claim.base, claim.principal).encode()

        def stored(value: bytes | None) -> bytes | None:
            claim.before = value
            return claim.stored

        self._directory.change(creator_key(claim.base), stored)

    def _complete(self, claim: CreationClaim, made: dict[TopicName, str | None]) -> None:
        def completed(value: bytes | None) -> bytes:
            now = None if value is None else Creator.decode(value)
            logs = (now.logs if now is not None and now.topic == claim.base else None) or {}
            if value is not None and all(logs.get(name, "") == log_id for name, log_id in made.items()):
                return value  # of a concurrent call that created the same topic
            kept = {} if claim.stored is not None else logs
            return Creator(claim.base, claim.principal, {**kept, **made}).encode()

        self._directory.change(creator_key(claim.base), completed)

    def _restore(self, claim: CreationClaim) -> None:
        def restored(value: bytes | None) -> bytes | None:
            return claim.before if value == claim.stored else value

        self._directory.change(creator_key(claim.base), restored)

    def _ids(self, claim: CreationClaim) -> dict[TopicName, str | None]:
        """Return the ids of the claimed topics that exist."""
        logs = self.logs_of(Creator(claim.base, claim.principal))
        return {name: None if log is None else log.log_id for name, log in logs.items() if name in claim.names}

    def _release(self, claim: CreationClaim) -> None:
        with self._guard:
            self._pending.discard(claim)

    def _abandon(self, beginning: asyncio.Future[CreationClaim | None]) -> None:
        claim = None if beginning.cancelled() or beginning.exception() is not None else beginning.result()
        if claim is not None:
            self._release(claim)


def is_of_log(log: TopicLog | None, log_id: str | None) -> bool:
    """Whether the id is that of the log, or of one that was renumbered to it. A non-reliable topic has none."""
    if log is None:
        return log_id is None
    return log_id == log.log_id or any(log_id == one.log_id for one in log.former)
