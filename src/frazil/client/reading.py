"""Rows of a topic from its owner, who goes through table, files, cache and live tail. After a cut it is asked again,
from the next offset on."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.flight

from frazil.client.connection import FAILURES, Connection, delay_seconds, is_passing
from frazil.core.clock import Clock
from frazil.core.errors import FrazilError
from frazil.log.positions import Start, check_end, check_start, time_us

_ALIGNED = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.DataTypeSpecific)


class RemoteBatches(Iterator[pa.RecordBatch]):
    """Batches from `start` on, each with its `_offset` column. Not to be shared between threads, but for `close`."""

    def __init__(
        self,
        connection: Connection,
        topic: str,
        start: Start,
        end: int | None,
        follow: bool,
        give_up_ms: int,
        clock: Clock,
    ) -> None:
        check_start(start)
        check_end(end)
        self._connection = connection
        self._give_up_ms = give_up_ms
        self._clock = clock
        first: Any = {"time_us": time_us(start)} if isinstance(start, datetime) else start
        self._wanted = {"topic": topic, "log_id": None, "start": first, "end": end, "follow": follow}
        self._stream: Any = None
        self._closed = False
        self.offset = 0
        self._end: int | None = None
        self._open_again(self._try_open())

    def __next__(self) -> pa.RecordBatch:
        while self._end is None or self.offset < self._end:
            self._connection.check_open()
            if self._closed:
                raise StopIteration
            batch = self._read()
            if batch is not None:
                self.offset += batch.num_rows
                self._wanted["start"] = self.offset
                return batch
        self.close()
        raise StopIteration

    def close(self) -> None:
        """Ends the stream, also while another thread waits for its next batch."""
        self._closed = True
        if self._stream is not None:
            self._stream.cancel()

    def _read(self) -> pa.RecordBatch | None:
        """The next batch; None where there was only a sign of life, or the stream was opened anew."""
        try:
            chunk = self._stream.read_chunk()
        except StopIteration:  # the topic's columns have changed
            self._open_again(self._try_open())
            return None
        except FAILURES as error:
            if not self._closed:
                self._open_again(self._connection.error_of(error))
            return None
        return chunk.data

    def _open_again(self, error: FrazilError | None) -> None:
        """Until it goes well, for as long as is set; an error that waiting won't mend is the caller's at once."""
        since_us, attempt = self._clock.monotonic_us(), 0
        while error is not None:
            waited_ms = (self._clock.monotonic_us() - since_us) // 1_000
            if not is_passing(error) or waited_ms >= self._give_up_ms or self._closed:
                raise error
            attempt += 1
            threading.Event().wait(delay_seconds(attempt))
            error = self._try_open()

    def _try_open(self) -> FrazilError | None:
        ticket = pa.flight.Ticket(json.dumps({"read": self._wanted}).encode())
        options = pa.flight.FlightCallOptions(read_options=_ALIGNED)
        try:
            self._connection.check_open()
            self._stream = self._connection.flight.do_get(ticket, options)
            told = json.loads(self._stream.read_chunk().app_metadata.to_pybytes())
        except (*FAILURES, StopIteration) as error:
            return self._connection.error_of(error)
        self.offset, self._end = told["offset"], told["end"]
        self._wanted |= {"log_id": told["log_id"], "start": told["offset"], "end": told["end"]}
        return None
