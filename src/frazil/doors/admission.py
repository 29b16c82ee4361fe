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
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from frazil.core.access import Action, Resource, ResourceKind, Right
from frazil.core.errors import FrazilError, InvalidInput, QuotaExceeded, TryLater, Unauthenticated
from frazil.core.principal import ANONYMOUS, Principal
from frazil.doors.tls import certificate_of_call
from frazil.node.access.gate import Credentials, Gate

AUTHORIZATION = "authorization"
HEADER_BYTES_MAX = 16 * 1024
LOOK_SECONDS = 0.5
"""How often the rights of an idle stream are checked."""
PUBLIC_READS_MAX = 16
"""Requests of public calls by unknown callers that are received at once: each may be large."""
PUBLIC_READ_SECONDS_MAX = 10.0
QUOTA_SECONDS_MAX = 30.0
"""A stream to a client that has used up its bytes pauses this long before it ends."""
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


def who() -> Principal:
    """Return the caller. Threads do not inherit it: pass it to them."""
    return _caller.get()


def credentials(context: Any) -> Credentials:
    """Return what a call presents; raises `Unauthenticated` for too large or repeated headers."""
    given = [value for name, value in context.invocation_metadata() if name == AUTHORIZATION]
    if sum(map(len, given)) > HEADER_BYTES_MAX:
        raise Unauthenticated(f"the header authorization has more than {HEADER_BYTES_MAX} bytes")
    if len(given) > 1:
        raise Unauthenticated("the header authorization is there more than once")
    name, expires_us = certificate_of_call(context.auth_context()) or (None, None)
    return Credentials(given[0] if given else None, name, context.peer(), expires_us)


def is_known(gate: Gate, metadata: Iterable[tuple[str, str | bytes]]) -> bool:
    """Whether the header of a call was verified lately. Certificates are not looked at: gRPC does not have them yet."""
    given = [value for name, value in metadata if name == AUTHORIZATION]
    if len(given) != 1 or not isinstance(given[0], str) or len(given[0]) > HEADER_BYTES_MAX:
        return False
    return gate.known(Credentials(given[0])) is not None


@contextlib.asynccontextmanager
async def reading(gate: Gate, context: Any, needs: Rights | Needs, reads: asyncio.Semaphore) -> AsyncIterator[None]:
    """Let the request of an unknown caller be received: once it is identified, or if the call is public a few at once.

    Raises why not.
    """
    if needs is not Needs.PUBLIC:
        await gate.identify(credentials(context))
        yield
        return
    try:
        async with reads, asyncio.timeout(PUBLIC_READ_SECONDS_MAX):
            yield
    except TimeoutError:
        raise TryLater(f"the request was not complete after {PUBLIC_READ_SECONDS_MAX:.0f} s") from None


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
    gate.request(found)
    if isinstance(message, InvalidInput):
        raise message
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
    """The rights of one stream, for as long as it is open."""

    __slots__ = ("_gate", "_peer", "_rights", "who")

    def __init__(self, gate: Gate, caller: Principal, peer: str, rights: Sequence[Right]) -> None:
        self._gate = gate
        self._peer = peer
        self._rights = tuple(rights)
        self.who = caller

    def admit(self) -> None:
        """Check for the first time, for a method that leaves it to its handler."""
        self._gate.check_all(self.who, self._rights, self._peer)

    def check(self) -> None:
        """Raise if a right is gone. What is still allowed leaves no further line in the audit log."""
        gate = self._gate
        if not gate.is_on:
            return
        for action, resource in self._rights:
            if not gate.allows(self.who, action, resource):
                gate.check(self.who, action, resource, self._peer)

    def take(self, size_bytes: int) -> None:
        """Check before received rows are taken, and count them; raises `QuotaExceeded` too."""
        if self._gate.is_on:
            self.check()
            self._gate.transfer(self.who, size_bytes)

    async def give(self, size_bytes: int) -> None:
        """Check before rows are sent, and count them; waits while the caller's quota is used up."""
        if not self._gate.is_on:
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
        """Count the stream. If a right is gone meanwhile call `end`, and raise the reason after the block."""
        if not self._gate.is_on:
            yield
            return
        watch = _Watch(self.check, end)
        try:
            with self._gate.stream(self.who):
                yield
        except FrazilError:
            if watch.lost is None:
                raise
        finally:
            watch.stop()
        if watch.lost is not None:
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

    def check(self) -> None:
        """Raise if the credentials are not valid any more, or `TryLater` if other roles apply."""
        if self._gate.rules_of(self.who) != self._rules:
            raise TryLater(f"the rights of {self.who.name} were changed while its query ran; ask again")


class _Watch:
    """Checks periodically until it fails: then it keeps the error and calls `end`."""

    __slots__ = ("_check", "_end", "_timer", "lost")

    def __init__(self, check: Callable[[], None], end: Callable[[], None]) -> None:
        self._check = check
        self._end = end
        self.lost: FrazilError | None = None
        self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        try:
            self._check()
        except FrazilError as error:
            self.lost = error
            self._end()
        else:
            self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
