"""Read rows of a topic from its owner, which reads table, files, cache and live tail. After a disconnect, reading
resumes from the next offset.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.flight

from frazil.client.connection import FAILURES, Connection, is_temporary
from frazil.client.opening import keep_after_fork
from frazil.log.read.positions import Start, check_end, check_start, time_us

ALIGNED = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.DataTypeSpecific)
"""Buffers as native code such as PyIceberg's needs them. On the wire most are not aligned."""


class RemoteBatches(Iterator[pa.RecordBatch]):
    """Batches from `start` on, each with its `_offset` column. Not thread-safe, except for `close`."""

    def __init__(self, connection: Connection, topic: str, start: Start, end: int | None, follow: bool) -> None:
        check_start(start)
        check_end(end)
        keep_after_fork(self)
        self._connection = connection
        first: Any = {"time_us": time_us(start)} if isinstance(start, datetime) else start
        self._wanted = {"topic": topic, "log_id": None, "start": first, "end": end, "follow": follow}
        self._topic = topic
        self._link = connection.link(topic)
        self._stream: Any = None
        self._closed = False
        self.offset = 0
        self._end: int | None = None
        self._open()

    def __next__(self) -> pa.RecordBatch:
        self._connection.process.check()
        while self._end is None or self.offset < self._end:
            self._connection.check_open()
            if self._closed:
                raise StopIteration
            batch = self._read()
            if batch is not None:
                self.offset = batch.column(0)[-1].as_py() + 1  # gaps that were accepted are left out
                self._wanted["start"] = self.offset
                return batch
        self.close()
        raise StopIteration

    def close(self) -> None:
        """End the stream, even while another thread waits for its next batch."""
        if not self._connection.process.is_here:
            return
        self._closed = True
        if self._stream is not None:
            self._stream.cancel()

    def _read(self) -> pa.RecordBatch | None:
        """Return the next batch; None if there was only a note, or the stream was reopened."""
        try:
            chunk = self._stream.read_chunk()
        except (*FAILURES, StopIteration) as error:
            if self._closed:
                return None
            if not isinstance(error, StopIteration):  # the note says that the topic's columns have changed
                failed = self._connection.failed(error, self._topic, self._link)
                if not is_temporary(failed):
                    raise failed from None
            self._open()
            return None
        if chunk.data is None:
            self._connection.learn_brokers()  # while there is nothing to read
        if chunk.data is None and chunk.app_metadata is not None:
            self.offset = max(self.offset, json.loads(chunk.app_metadata.to_pybytes()).get("offset", 0))
        return chunk.data

    def _open(self) -> None:
        self._connection.tried(self._try_open, lambda: self._closed)

    def _try_open(self) -> None:
        self._link = link = self._connection.link(self._topic)
        ticket = pa.flight.Ticket(json.dumps({"read": self._wanted}).encode())
        try:
            self._stream = link.flight.do_get(ticket, read_options=ALIGNED)
            answer = json.loads(self._stream.read_chunk().app_metadata.to_pybytes())
        except (*FAILURES, StopIteration) as error:
            raise self._connection.failed(error, self._topic, link) from None
        self.offset, self._end = answer["offset"], answer["end"]
        self._wanted |= {"log_id": answer["log_id"], "start": answer["offset"], "end": answer["end"]}
