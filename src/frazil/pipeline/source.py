"""Where the mover learns of logs: from the process that owns them, which alone knows what is durable."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa
import pyarrow.flight

from frazil.core.errors import OwnerUnreachable
from frazil.core.offsets import OffsetRange
from frazil.log.info import LogInfo, LogList, as_json, from_json, log_info
from frazil.log.storage import Storage

__all__ = ["LogInfo", "LogSource", "OwnLogs", "RemoteLogs", "as_json", "fetch_range", "from_json", "log_info"]

LIST_SECONDS_MAX = 60.0


class LogSource(Protocol):
    @property
    def address(self) -> str | None:
        """Where tasks that don't see the files may fetch rows; None if nowhere."""
        ...

    def logs(self) -> list[LogInfo]: ...


class OwnLogs:
    """The logs of a storage that this process owns."""

    address: str | None = None

    def __init__(self, storage: Storage) -> None:
        self._list = LogList(storage)

    def logs(self) -> list[LogInfo]:
        return self._list.read()


class RemoteLogs:
    """The logs of another process, through its Flight door."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._client = pa.flight.connect(address)

    def logs(self) -> list[LogInfo]:
        options = pa.flight.FlightCallOptions(timeout=LIST_SECONDS_MAX)
        try:
            (result,) = self._client.do_action("logs", options)
        except (pa.flight.FlightError, pa.ArrowException, OSError) as error:
            raise OwnerUnreachable(self.address, str(error).splitlines()[0]) from None
        return [from_json(one) for one in json.loads(result.body.to_pybytes())]

    def close(self) -> None:
        self._client.close()


def fetch_range(address: str, topic: str, log_id: str, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
    """A range from the log's owner, for a task on another host."""
    client = pa.flight.connect(address)
    try:
        ticket = json.dumps({"topic": topic, "log_id": log_id, "start": wanted.start, "end": wanted.end})
        for chunk in client.do_get(pa.flight.Ticket(ticket.encode())):
            yield chunk.data
    finally:
        client.close()
