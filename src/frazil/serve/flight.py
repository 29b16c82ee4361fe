"""The Flight door, its reading side: which logs there are, and ranges of them as record batches.

    action `logs`   one JSON list: for each log its id, what is durable, and where its files are
    do_get          the ticket is JSON: {"topic": …, "log_id": …, "start": …, "end": …}; exactly these rows

Where other processes may move the rows, it also has the actions of `frazil.serve.movers`.

A mover elsewhere needs no more than this: neither the owner's disk nor its lock. Only what is durable is handed
out, and only of the log that was asked for: a topic made again under the same name has another id.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight
from pydantic import BaseModel, ConfigDict, Field

from frazil.core.errors import (
    AnotherLeads,
    Closed,
    FrazilError,
    InvalidInput,
    ListenFailed,
    LogFailed,
    OffsetOutOfRange,
    TryLater,
)
from frazil.core.rows import OFFSET
from frazil.core.settings import FlightSettings
from frazil.log.info import LogList, as_json
from frazil.log.reader import BatchReader
from frazil.log.storage import Storage
from frazil.log.topic_log import TopicLog
from frazil.pipeline.lease import this_host
from frazil.serve.flight_requests import KEY, FlightRequests, request_of
from frazil.serve.metrics_flight import FlightCounts
from frazil.serve.movers import MoverActions, parsed
from frazil.serve.request_ids import Request

STREAMS_MAX = 64
TICKET_BYTES_MAX = 4096
STOP_SECONDS_MAX = 5.0

_log = logging.getLogger("frazil.serve")


class _Ticket(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    topic: str
    log_id: str
    start: int = Field(ge=0)
    end: int = Field(gt=0)


class FlightDoor(pa.flight.FlightServerBase):  # type: ignore[misc]
    """Listens from the moment it is made; `stop` ends it."""

    def __init__(self, storage: Storage, settings: FlightSettings, movers: MoverActions | None = None) -> None:
        self._storage = storage
        self._logs = LogList(storage)
        self._settings = settings
        self._actions = {"logs": self._list_logs, **(movers.by_name if movers is not None else {})}
        self._streams = threading.BoundedSemaphore(STREAMS_MAX)
        self.counts = FlightCounts()
        self._stopping = False
        try:
            super().__init__(_location(settings.host, settings.port), middleware={KEY: FlightRequests()})
        except (pa.ArrowException, OSError) as error:
            _log.debug("the Flight door failed to listen: %s", error)
            reason, setting = "in use, or no address of this host", "--flight-port or flight.port"
            raise ListenFailed(settings.host, settings.port, reason, setting) from None

    @property
    def address(self) -> str:
        """Where this host reaches it; one that listens everywhere is reached by loopback."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._settings.host, self._settings.host)  # noqa: S104
        return _location(host, self.port)

    @property
    def advertised(self) -> str:
        """Where other hosts reach it: as told, else where it listens, and by the host's name if that is everywhere."""
        if self._settings.advertised is not None:
            return f"grpc://{self._settings.advertised.removeprefix('grpc://')}"
        everywhere = self._settings.host in ("0.0.0.0", "::")  # noqa: S104
        return _location(this_host() if everywhere else self._settings.host, self.port)

    def stop(self) -> None:
        """Streams end at their next batch. A client that takes no more of its batches is not waited for."""
        self._stopping = True
        ending = threading.Thread(target=self.shutdown, name="frazil-flight-stop", daemon=True)
        ending.start()
        ending.join(STOP_SECONDS_MAX)

    # --- what Flight calls

    def list_actions(self, context: object) -> list[tuple[str, str]]:  # noqa: ARG002
        return [(name, "see frazil.serve.flight and frazil.serve.movers") for name in self._actions]

    def do_action(self, context: object, action: pa.flight.Action) -> Iterator[bytes]:
        with _told(request_of(context)):
            act = self._actions.get(action.type)
            if act is None:
                raise InvalidInput(f"there is no action {action.type!r}; there is: {', '.join(self._actions)}")
            return iter([act(action.body.to_pybytes() if action.body is not None else b"")])

    def do_get(self, context: object, ticket: pa.flight.Ticket) -> pa.flight.GeneratorStream:
        request = request_of(context)
        with _told(request):
            wanted = _parsed(ticket.ticket)
            log = self._log_of(wanted)
            return pa.flight.GeneratorStream(pa.schema([OFFSET, *log.schema]), self._batches(log, wanted, request))

    def _list_logs(self, _: bytes) -> bytes:
        return json.dumps([as_json(info) for info in self._logs.read()]).encode()

    # --- a range

    def _log_of(self, wanted: _Ticket) -> TopicLog:
        """The log asked for, which has the whole range, or the reason why not."""
        log = self._storage.topic(wanted.topic, create=False).log
        if log.log_id != wanted.log_id:
            raise InvalidInput(
                f"{wanted.topic} is another log now: it has the id {log.log_id}, not {wanted.log_id}",
                topic=wanted.topic,
                log_id=log.log_id,
            )
        if wanted.start < log.first_offset or wanted.end > log.durable_end:
            beyond = wanted.start if wanted.start < log.first_offset else wanted.end - 1
            raise OffsetOutOfRange(wanted.topic, beyond, log.first_offset, log.durable_end)
        return log

    def _batches(self, log: TopicLog, wanted: _Ticket, request: Request) -> Iterator[pa.RecordBatch]:
        """Runs only once the client takes batches, so that one that never does holds none of the streams."""
        with _told(request), self._a_stream():
            schema = pa.schema([OFFSET, *log.schema])
            reader = BatchReader(log, wanted.start, wanted.end)
            try:
                for batch in reader:
                    if self._stopping:
                        raise Closed("the Flight door")
                    self.counts.sent(batch.num_rows)
                    yield batch if batch.schema.equals(schema) else batch.cast(schema)
            finally:
                reader.close()

    @contextlib.contextmanager
    def _a_stream(self) -> Iterator[None]:
        if not self._streams.acquire(blocking=False):
            self.counts.refuse()
            raise TryLater(f"{STREAMS_MAX} ranges are being read; try again later", limit=STREAMS_MAX)
        try:
            with self.counts.a_stream():
                yield
        finally:
            self._streams.release()


def _parsed(ticket: bytes) -> _Ticket:
    wanted = parsed(_Ticket, ticket, "ticket", TICKET_BYTES_MAX)
    if wanted.start >= wanted.end:
        raise InvalidInput(f"the ticket's range is empty: {wanted.start} up to {wanted.end}")
    return wanted


@contextlib.contextmanager
def _told(request: Request) -> Iterator[None]:
    """Errors as Flight's own, with the message and our fields as JSON; Flight would send a stack trace of others."""
    try:
        yield
    except FrazilError as error:
        raise _flight_error(error) from None
    except (pa.flight.FlightError, GeneratorExit):
        raise
    except Exception:  # noqa: BLE001 - whatever it was is for our log, not for a client
        _log.exception("a Flight call failed", extra={"request_id": request.id})
        raise pa.flight.FlightInternalError("an error of Frazil's own; its log says more") from None


def _flight_error(error: FrazilError) -> Exception:
    kind: Any = pa.flight.FlightServerError
    if isinstance(error, TryLater | Closed) and not isinstance(error, AnotherLeads):
        kind = pa.flight.FlightUnavailableError
    elif isinstance(error, LogFailed):
        kind = pa.flight.FlightInternalError
    found: Exception = kind(error.message, json.dumps(error.as_dict(), default=str).encode())
    return found


def _location(host: str, port: int) -> str:
    return f"grpc://[{host}]:{port}" if ":" in host else f"grpc://{host}:{port}"


@contextlib.contextmanager
def flight_door(storage: Storage, settings: FlightSettings, movers: MoverActions | None = None) -> Iterator[FlightDoor]:
    door = FlightDoor(storage, settings, movers)
    try:
        yield door
    finally:
        door.stop()
