"""A subscription as its consumer sees it: messages to be acknowledged, over one stream in both directions."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Self

import pyarrow as pa
import pyarrow.flight

from frazil.client.connection import FAILURES, Connection, is_passing
from frazil.core.rows import Message, to_messages


class RemoteSubscription(Iterator[Message]):
    """One thread takes messages; any may answer them. After a cut, what has no answer is delivered again."""

    def __init__(self, connection: Connection, asked: Mapping[str, Any]) -> None:
        self._connection = connection
        self._asked = json.dumps(asked).encode()
        self._guard = threading.Lock()
        self._ready: Iterator[Message] = iter(())
        self._writer: Any = None
        self._reader: Any = None
        self._closed = False
        self._open()

    def __next__(self) -> Message:
        while not self._closed:
            for message in self._ready:
                return message
            self._read()
        raise StopIteration

    def ack(self, *offsets: int) -> None:
        """They are done with. One that does not come through, because the stream is cut, leads to a redelivery."""
        self._tell({"ack": list(offsets)})

    def nack(self, offset: int, *, delay_ms: int | None = None, reason: str = "refused by its consumer") -> None:
        """It comes again, after `delay_ms` or as the broker's settings say."""
        self._tell({"nack": offset, "delay_ms": delay_ms, "reason": reason})

    def close(self) -> None:
        """Leave: what has no answer goes to others, or comes when the consumer is back. From any thread."""
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
                return  # the stream is cut, and the message comes again

    def _read(self) -> None:
        try:
            chunk = self._reader.read_chunk()
        except (*FAILURES, StopIteration) as error:
            failed = self._connection.error_of(error)
            if self._closed:
                return
            if not is_passing(failed):
                raise failed from None
            self._open()
            return
        if chunk.data is not None:
            self._ready = iter(to_messages(chunk.data))

    def _end(self) -> None:
        """Whatever state the stream is in: PyArrow writes to stderr of one that is dropped without a close."""
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(*FAILURES):
                self._writer.close()

    def _open(self) -> None:
        self._connection.tried(self._try_open, lambda: self._closed)

    def _try_open(self) -> None:
        """What was taken and not yet handed over is forgotten: it comes again."""
        self._connection.check_open()
        self._ready = iter(())
        try:
            descriptor = pa.flight.FlightDescriptor.for_command(self._asked)
            writer, reader = self._connection.flight.do_exchange(descriptor)
            with self._guard:
                self._end()
                self._writer, self._reader = writer, reader
            reader.read_chunk()
        except (*FAILURES, StopIteration) as error:
            with self._guard:
                self._end()
            raise self._connection.error_of(error) from None
