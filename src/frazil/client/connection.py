"""The connection of a client: request/response calls to the owners of topics, with their errors."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.flight

from frazil.client.brokers import Brokers, Link, addresses_of
from frazil.client.opening import FlightCalls, keep_after_fork
from frazil.core.backoff import backoff, jittered
from frazil.core.clock import Clock
from frazil.core.cluster import flight_address
from frazil.core.credentials import NO_CREDENTIALS, ClientCredentials
from frazil.core.errors import (
    Closed,
    Fenced,
    FrazilError,
    InvalidInput,
    LogFenced,
    MetadataUnavailable,
    NotOwner,
    OwnerUnreachable,
    PermissionDenied,
    TopicUnavailable,
    Unauthenticated,
)
from frazil.core.errors.codec import from_dict
from frazil.core.process.own_process import FORKED_FROM_GRPC, OwnProcess

CALL_SECONDS_MAX = 60.0
ASKED_US_MIN, ASKED_US_MAX = 500_000, 30_000_000
"""How often a client asks which brokers there are: often at first, while a cluster may be starting."""
ASKED_SECONDS_MAX = 5.0
DELAY_SECONDS_MIN, DELAY_SECONDS_MAX = 0.1, 2.0
FOLLOWED_MAX = 5
"""How often one call follows a topic to another broker: it may move meanwhile."""
FAILURES = (pa.flight.FlightError, pa.ArrowException, OSError)
"""All that PyArrow raises when a call fails."""

_REFUSALS: tuple[tuple[type[BaseException], type[FrazilError]], ...] = (
    (pa.flight.FlightUnauthenticatedError, Unauthenticated),
    (pa.flight.FlightUnauthorizedError, PermissionDenied),
)
"""Refusals without details, as of a proxy."""

_TLS_HINTS = (
    ("certificate verify failed", "its certificate is not signed by a trusted authority; name that authority as `ca`"),
    ("hostname verification", "its certificate is not for this host name; use a name that the certificate has"),
    ("not in peer certificate", "its certificate is not for this host name; use a name that the certificate has"),
    ("wrong version number", "it has no TLS; use grpc://host:port"),
    ("certificate required", "it requires a client certificate; give `certificate` and `key`"),
)
"""What gRPC says of TLS, in lower case and without underscores, and what to do."""

Elsewhere = Closed | NotOwner | TopicUnavailable | LogFenced
"""The broker has refused nothing for good: it closes, or the topic is served elsewhere, or soon."""

CutOff = MetadataUnavailable | Fenced
"""The broker cannot use the metadata store, or not any more: perhaps another one can, or this one soon."""

Answer = TypeVar("Answer")


def act_on(client: FlightCalls, address: str, action: str, body: bytes, seconds_max: float) -> Any:
    """What the owner answers to an action, or its error."""
    try:
        (result,) = client.do_action(pa.flight.Action(action, body), timeout=seconds_max)
    except FAILURES as error:
        raise error_of(error, address) from None
    return json.loads(result.body.to_pybytes())


def error_of(error: BaseException | None, address: str) -> FrazilError:
    """The owner's own error, where it was one; else the connection failed: `OwnerUnreachable`."""
    details = getattr(error, "extra_info", None)
    if details:
        return from_dict(json.loads(details))
    text = (str(error).splitlines() or ["the stream ended"])[0]
    for kind, ours in _REFUSALS:
        if isinstance(error, kind):
            return from_dict({"error": ours.code, "message": text[:300]})
    said = str(error).lower().replace("_", " ")
    hint = next((hint for sign, hint in _TLS_HINTS if sign in said), None)
    return OwnerUnreachable(address, text[:300] if hint is None else hint)


class Connection:
    """The connections to the brokers of a cluster, or to the one server. A call for a topic goes to its owner."""

    def __init__(
        self,
        address: str | Sequence[str],
        give_up_ms: int,
        clock: Clock,
        credentials: ClientCredentials = NO_CREDENTIALS,
    ) -> None:
        named = addresses_of(address)
        self._brokers = Brokers(named, credentials)
        keep_after_fork(self)
        self.address = ",".join(named)
        self.process = OwnProcess(f"the connection to {self.address}", FORKED_FROM_GRPC)
        self.give_up_ms = give_up_ms
        self._clock = clock
        self._named = len(named)
        self._asks_us = sys.maxsize
        """When to ask for the brokers again."""
        self._asked = 0
        self.closed = False

    def begin(self) -> None:
        """Find a broker that answers, and learn of the others."""
        for left in reversed(range(self._named)):
            try:
                self.act("topics")
                break
            except OwnerUnreachable:
                if not left:
                    raise
        self._asks_us = 0
        self.learn_brokers()

    def learn_brokers(self) -> None:
        """Ask now and then which brokers there are: others come later, and are needed when this one ends."""
        now_us = self._clock.monotonic_us()
        if now_us < self._asks_us:
            return
        self._asks_us = now_us + min(ASKED_US_MIN << min(self._asked, 10), ASKED_US_MAX)
        self._asked += 1
        link = self._brokers.of()
        try:
            brokers = act_on(link.flight, link.address, "brokers", b"", ASKED_SECONDS_MAX)
        except InvalidInput:  # a server of an earlier version
            self._asks_us = sys.maxsize
        except FrazilError as error:  # the call that follows gets it too
            self.learn(error, None, link)
        else:
            if len(brokers) > 1:
                self._brokers.announced((one["broker_id"], one["flight"]) for one in brokers)

    def link(self, topic: str | None = None) -> Link:
        """Return the connection to the owner of a topic, as far as it is known; to any broker without a topic."""
        self.check_open()
        self.learn_brokers()
        return self._brokers.of(topic)

    def act(self, action: str, **value: Any) -> Any:
        """Return the owner's answer or raise its error; `OwnerUnreachable` if it does not answer."""
        body, topic, followed = json.dumps(value).encode(), value.get("topic"), 0
        while True:
            link = self.link(topic)
            try:
                return act_on(link.flight, link.address, action, body, CALL_SECONDS_MAX)
            except FrazilError as error:
                self.learn(error, topic, link)
                if not isinstance(error, NotOwner) or followed == FOLLOWED_MAX:
                    raise
            if followed:  # the topic moves: the brokers do not agree yet
                threading.Event().wait(delay_seconds(followed))
            followed += 1

    def act_until(self, action: str, **value: Any) -> Any:
        """Call with retries, for idempotent actions: waits for an owner that is unavailable."""
        return self.tried(lambda: self.act(action, **value), lambda: self.closed)

    def tried(self, attempt: Callable[[], Answer], ended: Callable[[], bool]) -> Answer:
        """Retry until it succeeds or the time is up; a permanent error is raised at once."""
        since_us, attempts = self._clock.monotonic_us(), 0
        reason: FrazilError | None = None
        while True:
            try:
                return attempt()
            except FrazilError as error:
                reason = reason_of(error, reason)
                waited_ms = (self._clock.monotonic_us() - since_us) // 1_000
                if not is_temporary(error) or waited_ms >= self.give_up_ms or self.closed or ended():
                    raise reason from None
                is_led = isinstance(error, NotOwner) and not attempts
            attempts += 1
            if not is_led:
                threading.Event().wait(delay_seconds(attempts))

    def failed(self, error: BaseException | None, topic: str | None, link: Link) -> FrazilError:
        """Return the error of a call, after what it says about the owner of the topic has been learnt."""
        found = error_of(error, link.address)
        self.learn(found, topic, link)
        return found

    def learn(self, error: FrazilError, topic: str | None, link: Link | None = None) -> None:
        if isinstance(error, NotOwner) and topic is not None:
            address = flight_address(error.fields["addresses"])
            if address is not None:
                self._brokers.led(topic, error.fields["broker_id"], address)
            elif link is not None:  # it knew the owner last while that one was starting
                self._brokers.doubted(topic, link.address)
        elif isinstance(error, OwnerUnreachable) and link is not None:
            self._brokers.lost(link.address)
        elif isinstance(error, TopicUnavailable | LogFenced | CutOff) and topic is not None and link is not None:
            self._brokers.doubted(topic, link.address)

    def check_open(self) -> None:
        self.process.check()
        if self.closed:
            raise Closed(f"the connection to {self.address}")

    def close(self) -> None:
        if not self.process.is_here:
            return  # the parent still uses it
        self.closed = True
        for link in self._brokers.links():
            link.flight.close()


def is_temporary(error: FrazilError) -> bool:
    """Whether the same call may succeed on another connection, at another broker, or once the owner is back."""
    return isinstance(error, OwnerUnreachable | CutOff | Elsewhere) or type(error).code == "try_later"


def reason_of(error: FrazilError, before: FrazilError | None) -> FrazilError:
    """Return the error that says more: what a broker has answered goes before another one that does not answer."""
    return before if before is not None and isinstance(error, OwnerUnreachable) else error


def delay_seconds(attempt: int) -> float:
    """Back-off with jitter before the next attempt."""
    return jittered(backoff(attempt, first=DELAY_SECONDS_MIN, limit=DELAY_SECONDS_MAX))
