"""Admission of gRPC calls: who calls, and whether they may. It precedes the handler of every call.

    needs           what a method declares: a function that returns the rights for a request, or one of
                    IDENTIFIED      every caller with valid credentials
                    BY_HANDLER      its first message names the resource: the handler checks before anything else
                    PUBLIC          everyone, also without credentials: health checks
    admit           identify the caller, count the request, check the rights
    who             the caller of the current call, for its handler
    StreamRights    the rights of a stream, checked again for each batch and while it is idle
    QueryRights     the same for a query, which sees what its caller may read

With security off, `service` leaves admission out.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Any, Protocol

from frazil.core import access
from frazil.core.access import NAME_LENGTH_MAX, Action, Resource, ResourceKind, Right
from frazil.core.errors import FrazilError, InvalidInput, QuotaExceeded, TryLater, Unauthenticated
from frazil.core.principal import ANONYMOUS, Principal
from frazil.doors.client_certificates import certificate_of_call
from frazil.node.access.gate import AUTHORIZATION, Credentials, Gate, only_header
from frazil.node.request_ids import current

LOOK_SECONDS = 0.5
"""How often the rights of an open stream are checked, also of an idle one."""
CUT_SECONDS = 0.5
"""A stream whose rights are gone has this long to end by itself. Then its task is cancelled: a write to a client that
has stopped reading would wait for ever."""
PUBLIC_READS_MAX = 16
"""Requests of public calls by unknown callers that are received at once: each may be large."""
PUBLIC_READS_OF_HOST_MAX = 4
READ_SECONDS_MAX = 10.0
"""So long may the request of a public call take, and of any call of a door with `RequestLimits`."""
QUOTA_SECONDS_MAX = 30.0
"""A stream to a client that has used up its bytes pauses this long before it ends."""
Place = Callable[[], None]
"""Raises why a stream may not go on at this broker; see `frazil.doors.owning`."""
NO_TABLE = Resource(ResourceKind.TABLE, "/")
"""What a caller without any role is refused for when it sends a query."""


class Needs(enum.Enum):
    PUBLIC = enum.auto()
    BY_HANDLER = enum.auto()


PUBLIC, BY_HANDLER = Needs.PUBLIC, Needs.BY_HANDLER

Rights = Callable[[Any], Sequence[Right]]
"""Returns the rights that a request needs; raises `InvalidInput` for a malformed one."""


def IDENTIFIED(_: Any) -> Sequence[Right]:  # noqa: N802 - a marker like the two above
    return ()


_caller: ContextVar[Principal] = ContextVar("caller", default=ANONYMOUS)
_is_counted: ContextVar[bool] = ContextVar("is_counted", default=False)
_has_lost_rights: ContextVar[bool] = ContextVar("has_lost_rights", default=False)


def who() -> Principal:
    """Return the caller. Threads do not inherit it: pass it to them."""
    return _caller.get()


def has_lost_rights() -> bool:
    """Whether the stream of this task has ended because its rights are gone."""
    return _has_lost_rights.get()


def credentials(context: Any) -> Credentials:
    """Return what a call presents; raises `Unauthenticated` for too large or repeated headers."""
    given = _authorization(context.invocation_metadata())
    name, expires_us = certificate_of_call(context.auth_context()) or (None, None)
    return Credentials(given, name, context.peer(), expires_us)


def is_known(gate: Gate, metadata: Iterable[tuple[str, str | bytes]]) -> bool:
    """Whether the header of a call was verified lately. Certificates are not looked at: gRPC does not have them yet."""
    try:
        given = _authorization(metadata)
    except Unauthenticated:
        return False
    return given is not None and gate.known(Credentials(given)) is not None


def _authorization(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    return only_header([value for name, value in metadata if name == AUTHORIZATION])


class PublicReads:
    """Requests of public calls: a few are received at once, and fewer of one host, so that it keeps out no others."""

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(PUBLIC_READS_MAX)
        self._hosts: dict[str, _Host] = {}

    @contextlib.asynccontextmanager
    async def receiving(self, peer: str) -> AsyncIterator[None]:
        name = peer.rpartition(":")[0]
        host = self._hosts.setdefault(name, _Host())
        host.calls += 1
        try:
            async with asyncio.timeout(READ_SECONDS_MAX), host.reads, self._all:
                yield
        except TimeoutError:
            raise too_slow(READ_SECONDS_MAX) from None
        finally:
            host.calls -= 1
            if not host.calls:
                del self._hosts[name]


class _Host:
    def __init__(self) -> None:
        self.calls = 0
        """That wait or are received."""
        self.reads = asyncio.Semaphore(PUBLIC_READS_OF_HOST_MAX)


class Receiving(Protocol):
    """Limits requests of identified callers while they are received."""

    def receiving(self, caller: Principal, peer: str) -> AbstractAsyncContextManager[None]: ...


class RequestLimits:
    """How long the request of an identified caller may take, and how many of one caller may be on their way.

    Until its request is there, a call holds a place among the concurrent ones of its door.
    """

    def __init__(self, of_caller_max: int) -> None:
        self._of_caller_max = of_caller_max
        self._on_their_way: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def receiving(self, caller: Principal, peer: str) -> AsyncIterator[None]:  # noqa: ARG002 - a caller has a name
        if self._on_their_way[caller.name] >= self._of_caller_max:
            raise TryLater(
                f"{self._of_caller_max} calls of {caller.name} have sent no request yet; send them",
                limit=self._of_caller_max,
            )
        self._on_their_way[caller.name] += 1
        try:
            async with asyncio.timeout(READ_SECONDS_MAX):
                yield
        except TimeoutError:
            raise too_slow(READ_SECONDS_MAX) from None
        finally:
            self._on_their_way[caller.name] -= 1
            if not self._on_their_way[caller.name]:
                del self._on_their_way[caller.name]


@contextlib.asynccontextmanager
async def reading(
    gate: Gate, context: Any, needs: Rights | Needs, reads: PublicReads, limits: Receiving | None = None
) -> AsyncIterator[None]:
    """Let the request of a caller be received: once it is identified, or if the call is public a few at once.

    Raises why not.
    """
    if needs is not Needs.PUBLIC:
        given = credentials(context)
        caller = gate.known(given) or await gate.identify(given)
        if limits is None:
            yield
            return
        if (asked := current()) is not None:
            asked.peer = given.peer
        gate.request(caller)
        _is_counted.set(True)
        async with limits.receiving(caller, given.peer):
            yield
        return
    async with reads.receiving(context.peer()):
        yield


def too_slow(seconds_max: float) -> TryLater:
    return TryLater(f"the request was not complete after {seconds_max:.0f} s", limit_seconds=seconds_max)


async def admit(gate: Gate, context: Any, needs: Rights | Needs, message: Any = None) -> None:
    """Let a call pass, or raise the reason why not. Nothing of the message is looked at before the caller is known."""
    if needs is Needs.PUBLIC:
        _caller.set(await _known_or_anonymous(gate, context))
        return
    given = credentials(context)
    found = gate.known(given)
    if found is None:
        found = await gate.identify(given)
    _caller.set(found)
    if not _is_counted.get():
        gate.request(found)
    if isinstance(message, InvalidInput):
        raise message
    if (asked := current()) is not None:
        asked.peer = given.peer
    if not isinstance(needs, Needs):
        gate.check_all(found, needs(message), given.peer)


async def _known_or_anonymous(gate: Gate, context: Any) -> Principal:
    """A public call is answered whatever the credentials, but only a known caller learns of its own state."""
    try:
        given = credentials(context)
        if given.authorization is None and given.certificate is None:
            return ANONYMOUS
        return gate.known(given) or await gate.identify(given)
    except FrazilError:
        return ANONYMOUS


class StreamRights:
    """The rights of one stream, for as long as it is open, and its place in a cluster."""

    __slots__ = ("_gate", "_peer", "_place", "_rights", "who")

    def __init__(
        self, gate: Gate, caller: Principal, peer: str, rights: Sequence[Right], place: Place | None = None
    ) -> None:
        self._gate = gate
        self._peer = peer
        self._rights = tuple(rights)
        self._place = place
        self.who = caller

    @property
    def is_checked(self) -> bool:
        """Whether there is anything to check again."""
        return self._gate.is_on or self._place is not None

    def admit(self) -> None:
        """Check for the first time, for a method that leaves it to its handler."""
        self._gate.check_all(self.who, self._rights, self._peer)
        if self._place is not None:
            self._place()

    def check(self) -> None:
        """Raise if a right is gone, or the topic. What is still allowed leaves no further line in the audit log."""
        gate = self._gate
        if gate.is_on:
            for action, resource in self._rights:
                if not gate.allows(self.who, action, resource):
                    gate.check(self.who, action, resource, self._peer)
        if self._place is not None:
            self._place()

    def take(self, size_bytes: int) -> None:
        """Check before received rows are taken, and count them; raises `QuotaExceeded` too."""
        if self.is_checked:
            self.check()
            self._gate.transfer(self.who, size_bytes)

    async def give(self, size_bytes: int) -> None:
        """Check before rows are sent, and count them; waits while the caller's quota is used up."""
        if not self.is_checked:
            return
        waited = 0.0
        while True:
            self.check()
            try:
                self._gate.transfer(self.who, size_bytes)
            except QuotaExceeded as full:
                pause = min(full.fields["retry_after_ms"] / 1_000, LOOK_SECONDS)
                waited += pause
                if waited > QUOTA_SECONDS_MAX:
                    raise
                await asyncio.sleep(pause)
            else:
                return

    @contextlib.contextmanager
    def open(self, end: Callable[[], None]) -> Iterator[None]:
        """Count the stream. If a right or the topic goes meanwhile call `end`, and raise the reason after the block.

        A block that does not end then is cancelled. It must run in one task.
        """
        if not self.is_checked:
            yield
            return
        watch = _Watch(self.check, end)
        try:
            with self._gate.stream(self.who):
                yield
        except FrazilError:
            if watch.lost is None:
                raise
        except asyncio.CancelledError:
            if not watch.has_cut():
                raise
        finally:
            watch.stop()
        if watch.lost is not None:
            _has_lost_rights.set(True)
            raise watch.lost


class QueryRights(StreamRights):
    """The rights of a query: all that the caller has when it begins. If they change, it ends."""

    __slots__ = ("_rules",)

    def __init__(self, gate: Gate, caller: Principal, peer: str) -> None:
        super().__init__(gate, caller, peer, ())
        self._rules = gate.rules_of(caller)

    def admit(self) -> None:
        """Refuse a caller without any role: even a query of nothing takes memory and time."""
        if self._rules == []:
            self._gate.check(self.who, Action.READ, NO_TABLE, self._peer)

    def refused(self, table: str) -> None:
        """Record a table that the query's process did not find, if that is because the caller may not read it.

        The process decides by itself, and has no audit log. The name may have dots, so every reading of it counts.
        """
        words = table.split(".") if len(table) <= NAME_LENGTH_MAX else []
        for count in range(1, len(words)):
            resource = access.table(".".join(words[:count]), ".".join(words[count:]))
            on_topic = Resource(ResourceKind.TOPIC, resource.name)
            if not all(self._gate.allows(self.who, Action.READ, one) for one in (resource, on_topic)):
                self._gate.refusal(self.who, Action.READ, resource, "named in a query", self._peer)
                return

    def check(self) -> None:
        """Raise if the credentials are not valid any more, or `TryLater` if other roles apply."""
        if self._gate.rules_of(self.who) != self._rules:
            raise TryLater(f"the rights of {self.who.name} were changed while its query ran; ask again")


class _Watch:
    """Checks periodically until it fails: then it keeps the error, calls `end`, and soon cancels the task."""

    __slots__ = ("_cancelling", "_check", "_end", "_is_cut", "_loop", "_task", "_timer", "lost")

    def __init__(self, check: Callable[[], None], end: Callable[[], None]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._check = check
        self._end = end
        self._task = task
        self._cancelling = task.cancelling()
        self._is_cut = False
        self.lost: FrazilError | None = None
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def stop(self) -> None:
        self._timer.cancel()

    def has_cut(self) -> bool:
        """Take back the cancellation by this watch. Returns whether there is no other."""
        return self._is_cut and self._task.uncancel() <= self._cancelling

    def _look(self) -> None:
        try:
            self._check()
        except FrazilError as error:
            self.lost = error
            self._end()
            self._timer = self._loop.call_later(CUT_SECONDS, self._cut)
        else:
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def _cut(self) -> None:
        self._is_cut = True
        self._task.cancel()
