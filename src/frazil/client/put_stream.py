"""One stream of batches to the owner, and its answers. Reopened after every disconnect."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pyarrow.flight

from frazil.client.connection import FAILURES, Connection
from frazil.client.opening import keep_after_fork
from frazil.client.window import Batch
from frazil.core.errors import FrazilError
from frazil.core.put_notes import WHOLE_BYTES_MAX, batch_note
from frazil.core.sequences import ProducerOpening


class PutStream:
    """One thread writes, another one reads."""

    def __init__(
        self,
        connection: Connection,
        topic: str,
        log_id: str,
        schema: pa.Schema,
        producer: str,
        opening: ProducerOpening,
    ) -> None:
        keep_after_fork(self)
        self._connection = connection
        self._topic = topic
        self._link = link = connection.link(topic)
        self._writing = threading.Lock()
        self.schema = schema
        asked = {"topic": topic, "log_id": log_id, "producer": producer, **asdict(opening)}
        descriptor = pa.flight.FlightDescriptor.for_command(json.dumps(asked).encode())
        try:
            self._writer, self._answers = link.flight.do_put(descriptor, schema)
        except FAILURES as error:
            raise connection.failed(error, topic, link) from None
        opened = self.read()
        if opened is None:
            raise self.finish() or connection.failed(None, topic, link)
        self.epoch: int = opened["epoch"]
        self.next_sequence: int = opened["next_sequence"]
        self.resumed: bool = opened["resumed"]
        """Whether the epoch already belonged to this client."""
        self.stored = {(sequence, rows): offset for sequence, offset, rows in opened["recent"]}
        """Offsets of the most recent batches of this epoch, by sequence and rows."""

    def write(self, batch: Batch) -> None:
        with self._writing:
            try:
                if isinstance(batch.rows, pa.RecordBatch) and batch.size_bytes <= WHOLE_BYTES_MAX:
                    self._writer.write_with_metadata(batch.rows, pa.py_buffer(batch_note(batch.sequence, batch.traces)))
                else:
                    for note in batch.notes():
                        self._writer.write_metadata(pa.py_buffer(note))
            except FAILURES as error:
                raise self._connection.failed(error, self._topic, self._link) from None

    def read(self) -> dict[str, Any] | None:
        """Return the next answer; None at the end, after which `finish` says why."""
        try:
            answer = self._answers.read()
        except FAILURES:
            return None
        return None if answer is None else dict(json.loads(answer.to_pybytes()))

    def half_close(self) -> None:
        """Half-close the stream: batches already written are still answered."""
        with self._writing:
            try:
                self._writer.done_writing()
            except FAILURES:
                return  # the stream has ended; the reader notices it

    def finish(self) -> FrazilError | None:
        """Return the error that ended the stream, if any. Call it after the last answer."""
        with self._writing:
            try:
                self._writer.close()
            except FAILURES as error:
                return self._connection.failed(error, self._topic, self._link)
        return None
