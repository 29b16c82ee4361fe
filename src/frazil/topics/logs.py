"""The logs of a data folder as others see them, who only read: through the process that owns them, or from the files
where none serves."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa
import pyarrow.flight

from frazil.core.disk import LocalDisk
from frazil.core.errors import CorruptLog, OwnerUnreachable
from frazil.core.offsets import OffsetRange
from frazil.core.settings import Settings
from frazil.log.info import LogInfo, from_json, logs_from_files
from frazil.log.ownership import served_by
from frazil.log.ranges import read_range

LIST_SECONDS_MAX = 60.0
FETCH_SECONDS_MAX = 300.0


class LogView(Protocol):
    def logs(self) -> list[LogInfo]: ...

    def read(self, info: LogInfo, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        """Exactly these rows, with `_offset`, in the form of the topic's schema as the info has it."""
        ...


class FileView:
    """Nobody serves the folder: what its files hold."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.problems: dict[str, str] = {}

    def logs(self) -> list[LogInfo]:
        found, self.problems = logs_from_files(LocalDisk(), self._settings.log_folder)
        return found

    def read(self, info: LogInfo, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        stored = pa.ipc.read_schema(pa.py_buffer(info.stored_schema))
        return read_range(LocalDisk(), info.log_id, info.files, wanted, stored)


class OwnerView:
    """What the owner says is durable; read from its files where they are at hand, else through it."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._client = pa.flight.connect(address)

    def logs(self) -> list[LogInfo]:
        options = pa.flight.FlightCallOptions(timeout=LIST_SECONDS_MAX)
        try:
            (result,) = self._client.do_action(pa.flight.Action("logs", b""), options)
        except (pa.flight.FlightError, pa.ArrowException, OSError) as error:
            raise OwnerUnreachable(self._address, str(error).splitlines()[0]) from None
        return [from_json(one) for one in json.loads(result.body.to_pybytes())]

    def read(self, info: LogInfo, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        if all(os.access(path, os.R_OK) for _, path in info.files):
            stored = pa.ipc.read_schema(pa.py_buffer(info.stored_schema))
            return read_range(LocalDisk(), info.log_id, info.files, wanted, stored)
        return self._fetch(info, wanted)

    def close(self) -> None:
        self._client.close()

    def _fetch(self, info: LogInfo, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        ticket = {"topic": str(info.topic), "log_id": info.log_id, "start": wanted.start, "end": wanted.end}
        options = pa.flight.FlightCallOptions(timeout=FETCH_SECONDS_MAX)
        try:
            for chunk in self._client.do_get(pa.flight.Ticket(json.dumps(ticket).encode()), options):
                yield chunk.data
        except pa.flight.FlightServerError as error:
            raise CorruptLog(str(info.topic), 0, str(error).splitlines()[0]) from None
        except (pa.flight.FlightError, pa.ArrowException, OSError) as error:
            raise OwnerUnreachable(self._address, str(error).splitlines()[0]) from None


@contextlib.contextmanager
def open_view(settings: Settings, owner: str | None = None) -> Iterator[FileView | OwnerView]:
    """The owner that is named, else whoever serves the folder, else the files."""
    served = served_by(settings) if owner is None else None
    address = owner or (served["flight"] if served is not None else None)
    if address is None:
        yield FileView(settings)
        return
    view = OwnerView(address)
    try:
        yield view
    finally:
        view.close()
