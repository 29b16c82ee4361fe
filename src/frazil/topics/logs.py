"""The logs of a data folder as others see them, who only read: through the process that owns them, or from the files
where none serves."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.flight

from frazil.core.disk import LocalDisk
from frazil.core.errors import SEE_CHECK, CorruptLog, FrazilError, InvalidName, OwnerUnreachable
from frazil.core.names import TopicName
from frazil.core.offsets import OffsetRange
from frazil.core.own_process import check_grpc
from frazil.core.settings import Settings
from frazil.log.folder import names_in, topic_folder
from frazil.log.folder_mark import FolderMark
from frazil.log.info import LogInfo, from_json, logs_from_files
from frazil.log.ownership import served_by
from frazil.log.ranges import holds, read_range

LIST_SECONDS_MAX = 60.0
FETCH_SECONDS_MAX = 300.0
FETCHES_MAX = 6


LOOKS_MAX = 3
"""At a topic that is not among the logs: it may have been made or deleted between two looks."""


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
        check_grpc()
        self._client = pa.flight.connect(address)

    def logs(self) -> list[LogInfo]:
        return list_logs(self._client, self._address)

    def read(self, info: LogInfo, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        stored = pa.ipc.read_schema(pa.py_buffer(info.stored_schema))
        return read_anywhere(self._address, str(info.topic), info.log_id, info.files, wanted, stored, info.folder)

    def close(self) -> None:
        self._client.close()


def list_logs(client: pa.flight.FlightClient, address: str) -> list[LogInfo]:
    options = pa.flight.FlightCallOptions(timeout=LIST_SECONDS_MAX)
    try:
        (result,) = client.do_action(pa.flight.Action("logs", b""), options)
    except (pa.flight.FlightError, pa.ArrowException, OSError) as error:
        raise OwnerUnreachable(address, str(error).splitlines()[0]) from None
    return [from_json(one) for one in json.loads(result.body.to_pybytes())]


def read_anywhere(
    owner: str | None,
    topic: str,
    log_id: str,
    files: Sequence[tuple[int, Path]],
    wanted: OffsetRange,
    stored: pa.Schema,
    folder: FolderMark | None = None,
) -> Iterator[pa.RecordBatch]:
    """A range from the files where they are at hand, else from the owner. A copy of its `folder` is not at hand."""
    is_copy = owner is not None and folder is not None and not folder.is_here()
    if files and not is_copy and all(holds(LocalDisk(), base, path, log_id) for base, path in files):
        return read_range(LocalDisk(), log_id, files, wanted, stored)
    if owner is None:
        raise FrazilError(f"{files[0][1] if files else 'no file'} is not at hand, and no owner to ask")
    return fetch_range(owner, topic, log_id, wanted)


def fetch_range(address: str, topic: str, log_id: str, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
    """A range from the log's owner, for a task that does not see its files. An owner that is busy is asked again."""
    check_grpc()
    client = pa.flight.connect(address)
    aligned = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.DataTypeSpecific)  # else PyIceberg's Rust panics
    options = pa.flight.FlightCallOptions(timeout=FETCH_SECONDS_MAX, read_options=aligned)
    ticket = json.dumps({"topic": topic, "log_id": log_id, "start": wanted.start, "end": wanted.end})
    try:
        for attempt in range(1, FETCHES_MAX + 1):
            stream = client.do_get(pa.flight.Ticket(ticket.encode()), options)
            try:
                first = next(stream, None)
            except pa.flight.FlightUnavailableError:
                if attempt == FETCHES_MAX:
                    raise
                threading.Event().wait(0.1 * 2**attempt)
                continue
            if first is not None:
                yield first.data
                yield from (chunk.data for chunk in stream)
            return
    finally:
        client.close()


def listed(view: LogView, folder: Path, base: TopicName) -> list[LogInfo]:
    """The logs of a topic or of its partitions; `CorruptLog` if one that is in the folder is not among them.

    What such a log holds beyond its table would be missing without a word.
    """
    try:
        TopicName.parse(str(base))
    except InvalidName:
        return []  # of a query: it must not lead out of the folder
    for _ in range(LOOKS_MAX):
        there = {name for name in names_in(LocalDisk(), folder, base.namespace) if name.partition_of()[0] == base}
        found = [info for info in view.logs() if info.topic.partition_of()[0] == base]
        left_out = sorted(there - {info.topic for info in found})
        if not left_out:
            return found
    problems: dict[str, str] = getattr(view, "problems", {})
    why = problems.get(str(left_out[0]), "its log can't be opened")
    raise CorruptLog(str(topic_folder(folder, left_out[0])), 0, why.removesuffix(SEE_CHECK))


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
