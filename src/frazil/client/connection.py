"""One connection to the owner of the topics: small questions and answers, and errors as the owner's own."""

from __future__ import annotations

import ctypes
import json
import os
import random
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.flight

from frazil.core.clock import Clock
from frazil.core.error_forms import from_dict
from frazil.core.errors import Closed, FrazilError, InvalidInput, OwnerUnreachable
from frazil.core.own_process import FORKED_FROM_GRPC, OwnProcess, check_grpc

CALL_SECONDS_MAX = 60.0
DELAY_SECONDS_MIN, DELAY_SECONDS_MAX = 0.05, 2.0
FAILURES = (pa.flight.FlightError, pa.ArrowException, OSError)
"""What PyArrow raises when a call fails, whatever the reason."""

_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # so long an attempt may take: the owner may have many at once
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
)

Answer = TypeVar("Answer")

_users_of_grpc: weakref.WeakSet[object] = weakref.WeakSet()


def spare_after_fork(user: object) -> None:
    """A forked child shares the parent's sockets. If it dropped calls or clients, gRPC would end them by a word to the
    server, and the parent's would end. So in a child whoever holds them is never dropped."""
    _users_of_grpc.add(user)


def _forked() -> None:
    for user in _users_of_grpc:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(user))


os.register_at_fork(after_in_child=_forked)


class Connection:
    def __init__(self, address: str, give_up_ms: int, clock: Clock) -> None:
        check_grpc()
        spare_after_fork(self)
        self.process = OwnProcess(f"the connection to {address}", FORKED_FROM_GRPC)
        self.address = address
        self.give_up_ms = give_up_ms
        self._clock = clock
        try:
            self.flight = pa.flight.connect(address, generic_options=list(_OPTIONS))
        except (pa.ArrowException, ValueError) as error:
            raise InvalidInput(f"{address!r:.200} is no address ({error}); use grpc://host:port") from None
        self.closed = False

    def act(self, action: str, **value: Any) -> Any:
        """What the owner answers, or its error; one that is not there is `OwnerUnreachable`."""
        self.check_open()
        options = pa.flight.FlightCallOptions(timeout=CALL_SECONDS_MAX)
        try:
            (result,) = self.flight.do_action(pa.flight.Action(action, json.dumps(value).encode()), options)
        except FAILURES as error:
            raise self.error_of(error) from None
        return json.loads(result.body.to_pybytes())

    def act_until(self, action: str, **value: Any) -> Any:
        """The same for what may be asked twice: an owner that is away is waited for."""
        return self.tried(lambda: self.act(action, **value), lambda: self.closed)

    def tried(self, attempt: Callable[[], Answer], ended: Callable[[], bool]) -> Answer:
        """Until it goes well, for as long as is set; an error that waiting won't mend is the caller's at once."""
        since_us, attempts = self._clock.monotonic_us(), 0
        while True:
            try:
                return attempt()
            except FrazilError as error:
                waited_ms = (self._clock.monotonic_us() - since_us) // 1_000
                if not is_passing(error) or waited_ms >= self.give_up_ms or self.closed or ended():
                    raise
            attempts += 1
            threading.Event().wait(delay_seconds(attempts))

    def error_of(self, error: BaseException | None) -> FrazilError:
        """The owner's own error, where it was one; else the connection failed."""
        told = getattr(error, "extra_info", None)
        if told:
            return from_dict(json.loads(told))
        return OwnerUnreachable(self.address, (str(error).splitlines() or ["the stream ended"])[0][:300])

    def check_open(self) -> None:
        self.process.check()
        if self.closed:
            raise Closed(f"the connection to {self.address}")

    def close(self) -> None:
        if not self.process.is_here:
            return  # the parent goes on to use it
        self.closed = True
        self.flight.close()


def is_passing(error: FrazilError) -> bool:
    """Whether the same call may go well on another connection, or once the owner is there again."""
    return isinstance(error, OwnerUnreachable | Closed) or type(error).code == "try_later"


def delay_seconds(attempt: int) -> float:
    """Before the next attempt: doubling, with a share of chance, so that not all clients come at once."""
    longest = min(DELAY_SECONDS_MAX, DELAY_SECONDS_MIN * float(1 << min(attempt, 10)))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - nobody gains by guessing it
