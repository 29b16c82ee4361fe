"""A subscription as its consumer sees it: messages to be acknowledged, over one bidirectional stream."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, Self

import pyarrow as pa
import pyarrow.flight

from frazil.client.connection import FAILURES, Connection, is_temporary
from frazil.client.opening import keep_after_fork
from frazil.core.rows import Message, to_messages

_log = logging.getLogger("frazil.client")

HANDED_MAX = 100_000
"""More messages than any window holds."""


class RemoteSubscription(Iterator[Message]):
    """One thread reads messages; any thread may answer them. After a disconnect, unanswered
    messages are redelivered.
    """

    def __init__(self, connection: Connection, asked: Mapping[str, Any]) -> None:
        keep_after_fork(self)
        self._connection = connection
        self._asked = json.dumps(asked).encode()
        self._topic: str = asked["topic"]
        self._link = connection.link(self._topic)
        self._guard = threading.Lock()
        self._ready: Iterator[Message] = iter(())
        self._incarnation: int | None = None
        """Incarnation of the subscription that the messages in `_ready` belong to."""
        self._handed: OrderedDict[int, int | None] = OrderedDict()
        """Incarnation of each message that was delivered but not answered."""
        self._writer: Any = None
        self._reader: Any = None
        self._closed = False
        self._is_first = True
        self._open()

    def __next__(self) -> Message:
        self._connection.process.check()
        while not self._closed:
            for message in self._ready:
                self._handed[message.offset] = self._incarnation
                if len(self._handed) > HANDED_MAX:
                    self._handed.popitem(last=False)
                return message
            self._read()
        raise StopIteration

    def ack(self, *offsets: int) -> None:
        """Acknowledge the messages. An ack that is lost with the stream leads to a redelivery."""
        by_incarnation: dict[int | None, list[int]] = {}
        for offset in offsets:
            by_incarnation.setdefault(self._handed.pop(offset, self._incarnation), []).append(offset)
        for incarnation, acked in by_incarnation.items():
            self._tell({"ack": acked, "incarnation": incarnation})

    def nack(self, offset: int, *, delay_ms: int | None = None, reason: str = "refused by its consumer") -> None:
        """Request redelivery, after `delay_ms` or as the broker's settings say."""
        incarnation = self._handed.pop(offset, self._incarnation)
        self._tell({"nack": offset, "delay_ms": delay_ms, "reason": reason, "incarnation": incarnation})

    def close(self) -> None:
        """Leave: unanswered messages go to other consumers, or are redelivered when this one returns. Thread-safe."""
        if not self._connection.process.is_here:
            return
        self._closed = True
        with self._guard:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tell(self, answer: dict[str, Any]) -> None:
        self._connection.check_open()
        with self._guard:
            try:
                self._writer.write_metadata(json.dumps(answer).encode())
            except FAILURES:
                return  # the stream is cut, and the message is redelivered

    def _read(self) -> None:
        try:
            chunk = self._reader.read_chunk()
        except (*FAILURES, StopIteration) as error:
            failed = self._connection.failed(error, self._topic, self._link)
            if self._closed:
                return
            if not is_temporary(failed):
                raise failed from None
            self._open()
            return
        if chunk.data is not None:
            self._ready = iter(to_messages(chunk.data))
        elif chunk.app_metadata is not None:
            self._connection.learn_brokers()  # while there are no messages
            self._incarnation = json.loads(chunk.app_metadata.to_pybytes()).get("incarnation", self._incarnation)

    def _end(self) -> None:
        """Close the stream in any state: PyArrow writes to stderr if a stream is dropped without a close."""
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(*FAILURES):
                self._writer.close()

    def _open(self) -> None:
        self._connection.tried(self._try_open, lambda: self._closed)

    def _try_open(self) -> None:
        """Discard messages that were received but not delivered: they are redelivered."""
        self._link = link = self._connection.link(self._topic)
        self._ready = iter(())
        try:
            descriptor = pa.flight.FlightDescriptor.for_command(self._asked)
            writer, reader = link.flight.do_exchange(descriptor)
            with self._guard:
                self._end()
                self._writer, self._reader = writer, reader
            opened = reader.read_chunk().app_metadata
        except (*FAILURES, StopIteration) as error:
            with self._guard:
                self._end()
            raise self._connection.failed(error, self._topic, link) from None
        if self._is_first and opened is not None and json.loads(opened.to_pybytes()).get("took_over"):
            _log.warning(
                "another consumer of the same name was connected, and has been ended: %s", self._asked.decode()
            )
        self._is_first = False
