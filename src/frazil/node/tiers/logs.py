"""The logs of a data folder for read-only processes: through the owner, or from the files if no process serves them."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.flight

from frazil.client.connection import act_on, error_of
from frazil.client.opening import FlightCalls, open_client
from frazil.client.reading import ALIGNED
from frazil.core.backoff import backoff
from frazil.core.credentials import NO_CREDENTIALS, ClientCredentials, credentials_of
from frazil.core.disk import LocalDisk
from frazil.core.errors import (
    SEE_CHECK,
    CorruptLog,
    FrazilError,
    InvalidName,
    InvalidSettings,
    OwnerUnreachable,
    PermissionDenied,
    Unauthenticated,
)
from frazil.core.names import TopicName
from frazil.core.offsets import OffsetRange
from frazil.core.rows import APPEND_TIME
from frazil.core.settings import Settings
from frazil.core.tiers import ContiguousBatches, Extent, Gone
from frazil.log.folder.identity import FolderMark
from frazil.log.folder.layout import names_in, topic_folder
from frazil.log.folder.ownership import served_by
from frazil.log.info import LogInfo, from_json, logs_from_files, objects_or_problem
from frazil.log.read.ranges import holds, read_range
from frazil.node.access.served import served_credentials
from frazil.node.tiers.objects import TaskObjects, open_object_logs, task_objects

if TYPE_CHECKING:
    from frazil.objects.known import ObjectsOfLogs

LIST_SECONDS_MAX = 60.0
FETCH_SECONDS_MAX = 300.0
FETCHES_MAX = 6
FETCH_AGAIN_SECONDS_MIN, FETCH_AGAIN_SECONDS_MAX = 0.2, 5.0


LOADS_AT_ONCE = 8
"""Logs whose objects are looked up at the same time."""
LOOKS_MAX = 3
"""Attempts to find a topic in the list of logs: it may have been created or deleted between two looks."""


class LogView(Protocol):
    def logs(self) -> list[LogInfo]: ...

    def read(self, info: LogInfo, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        """Read exactly these rows, with `_offset`, in the topic's schema of the info."""
        ...

    def read_objects(self, info: LogInfo, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        """Read the rows from objects alone, which hold them."""
        ...


class FileView:
    """The files of a folder that no process serves, and the objects of its logs."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.problems: dict[str, str] = {}

    def logs(self) -> list[LogInfo]:
        found, self.problems = logs_from_files(LocalDisk(), self._settings.log_folder)
        with open_object_logs(self._settings) as objects, ThreadPoolExecutor(LOADS_AT_ONCE) as pool:
            return found if objects is None else list(pool.map(lambda info: _with_objects(info, objects), found))

    def read(self, info: LogInfo, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        return read_log(self._settings, None, info, wanted)

    def read_objects(self, info: LogInfo, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        return read_objects(self._settings, info, wanted)


class OwnerView:
    """What the owner reports as durable; read from its files if they are accessible, else through the owner."""

    def __init__(self, address: str, credentials: ClientCredentials, settings: Settings) -> None:
        """`settings` have the store of the objects."""
        self.address = address
        self._credentials = credentials
        self._settings = settings
        self._client = open_client(address, credentials)

    def act(self, action: str, body: Any, seconds_max: float) -> Any:
        """Return the owner's answer, or raise its error."""
        return act_on(self._client, self.address, action, json.dumps(body).encode(), seconds_max)

    def logs(self) -> list[LogInfo]:
        return list_logs(self._client, self.address)

    def read(self, info: LogInfo, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        return read_log(self._settings, self.address, info, wanted, self._credentials)

    def read_objects(self, info: LogInfo, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        return read_objects(self._settings, info, wanted)

    def close(self) -> None:
        self._client.close()


class LogTier:
    """One log as a tier, by the information of a log view."""

    is_in_memory = False

    def __init__(self, view: LogView, info: LogInfo) -> None:
        self._view = view
        self._info = info
        self._first = info.held_from

    def may_hold(self, offset: int) -> bool:
        return self._first <= offset < self._info.durable_end

    def extent(self) -> Extent:
        return Extent(self._first, self._info.durable_end)

    def find(self, time_us: int) -> int | None:
        """Search by bisection: each step reads one row."""
        low, high = self._first, self._info.durable_end
        if low < high and self._time_us(low) >= time_us:
            return low
        while low < high:
            middle = (low + high) // 2
            if self._time_us(middle) >= time_us:
                high = middle
            else:
                low = middle + 1
        return low if low < self._info.durable_end else None

    def batches(self, wanted: OffsetRange) -> ContiguousBatches:
        if not self.may_hold(wanted.start):
            raise Gone(wanted.start)
        there = OffsetRange(wanted.start, min(wanted.end, self._info.durable_end))
        return ContiguousBatches(self._view.read(self._info, there), wanted.start)

    def _time_us(self, offset: int) -> int:
        (batch,) = self._view.read(self._info, OffsetRange(offset, offset + 1))
        return int(batch.column(APPEND_TIME.name).cast(pa.int64())[0].as_py())


def list_logs(client: FlightCalls, address: str) -> list[LogInfo]:
    try:
        listed = act_on(client, address, "logs", b"", LIST_SECONDS_MAX)
    except (OwnerUnreachable, Unauthenticated, PermissionDenied):
        raise
    except FrazilError as error:
        raise OwnerUnreachable(address, error.message.splitlines()[0]) from None
    return [from_json(one) for one in listed]


def read_log(
    settings: Settings,
    owner: str | None,
    info: LogInfo,
    wanted: OffsetRange,
    credentials: ClientCredentials = NO_CREDENTIALS,
) -> Iterator[pa.RecordBatch]:
    """Read a range of a log as `read_anywhere` does. Without an owner, files are read where they are, or refused."""
    stored = pa.ipc.read_schema(pa.py_buffer(info.stored_schema))
    objects = task_objects(settings, info.objects, wanted)
    if owner is None and (objects is None or info.first_offset <= wanted.start):
        return read_range(LocalDisk(), info.log_id, info.files, wanted, stored)
    return read_anywhere(
        owner, str(info.topic), info.log_id, info.files, wanted, stored, info.folder, credentials, objects
    )


def read_objects(settings: Settings, info: LogInfo, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
    """Read a range from objects alone, which hold it."""
    objects = task_objects(settings, info.objects, wanted)
    if objects is None:
        raise InvalidSettings(f"objects.enabled: {info.topic} has objects, and these settings do not name their store")
    return objects.read(wanted, pa.ipc.read_schema(pa.py_buffer(info.stored_schema)))


def read_anywhere(
    owner: str | None,
    topic: str,
    log_id: str,
    files: Sequence[tuple[int, Path]],
    wanted: OffsetRange,
    stored: pa.Schema,
    folder: FolderMark | None = None,
    credentials: ClientCredentials = NO_CREDENTIALS,
    objects: TaskObjects | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read a range from the files if they are accessible, else from objects, else from the owner. A copy of its
    `folder` does not count."""
    is_copy = owner is not None and folder is not None and not folder.is_here()
    needed = files_of(files, wanted)
    here = needed if not is_copy and all(holds(LocalDisk(), base, path, log_id) for base, path in needed) else []
    at = wanted.start
    while at < wanted.end:
        part = OffsetRange(at, wanted.end)
        if here and here[0][0] <= at:
            yield from read_range(LocalDisk(), log_id, here, part, stored)
            return
        if here:
            part = OffsetRange(at, here[0][0])
        stored_part = None if objects is None else objects.first_part(part)
        if stored_part is not None:
            assert objects is not None
            part = stored_part
            yield from objects.read(part, stored)
        elif owner is not None:
            yield from fetch_range(owner, topic, log_id, part, credentials)
        else:
            raise FrazilError(
                f"{needed[0][1] if needed else 'no file'} is not accessible, and there is no owner to ask"
            )
        at = part.end


def files_of(files: Sequence[tuple[int, Path]], wanted: OffsetRange) -> list[tuple[int, Path]]:
    """Return the segments that may hold rows of a range: others may be gone by now."""
    first = max((at for at, (base, _) in enumerate(files) if base <= wanted.start), default=0)
    return [(base, path) for base, path in files[first:] if base < wanted.end]


def fetch_range(
    address: str, topic: str, log_id: str, wanted: OffsetRange, credentials: ClientCredentials = NO_CREDENTIALS
) -> Iterator[pa.RecordBatch]:
    """Fetch a range from the log's owner, for a task without access to its files. Retries while the owner is busy."""
    client = open_client(address, credentials)
    ticket = json.dumps({"topic": topic, "log_id": log_id, "start": wanted.start, "end": wanted.end})
    try:
        for attempt in range(1, FETCHES_MAX + 1):
            stream = client.do_get(pa.flight.Ticket(ticket.encode()), timeout=FETCH_SECONDS_MAX, read_options=ALIGNED)
            try:
                first = next(stream, None)
            except pa.flight.FlightUnavailableError:
                if attempt == FETCHES_MAX:
                    raise
                threading.Event().wait(backoff(attempt, first=FETCH_AGAIN_SECONDS_MIN, limit=FETCH_AGAIN_SECONDS_MAX))
                continue
            if first is not None:
                yield first.data
                yield from (chunk.data for chunk in stream)
            return
    except (pa.flight.FlightUnauthenticatedError, pa.flight.FlightUnauthorizedError) as error:
        raise error_of(error, address) from None
    finally:
        client.close()


def listed(view: LogView, folder: Path, base: TopicName) -> list[LogInfo]:
    """Return the logs of a topic or of its partitions; raises `CorruptLog` if one in the folder is not listed.

    Otherwise rows of such a log beyond its table would be missing silently.
    """
    try:
        TopicName.parse(str(base))
    except InvalidName:
        return []  # part of a query: it must not escape the folder
    for _ in range(LOOKS_MAX):
        there = {name for name in names_in(LocalDisk(), folder, base.namespace) if name.partition_of()[0] == base}
        found = [info for info in view.logs() if info.topic.partition_of()[0] == base]
        left_out = sorted(there - {info.topic for info in found})
        if not left_out:
            return found
    problems: dict[str, str] = getattr(view, "problems", {})
    why = problems.get(str(left_out[0]), "its log can't be opened")
    raise CorruptLog(str(topic_folder(folder, left_out[0])), 0, why.removesuffix(SEE_CHECK))


def _with_objects(info: LogInfo, objects: ObjectsOfLogs) -> LogInfo:
    found, problem = objects_or_problem(lambda: objects.of(info.log_id).load().all())
    if not info.is_in_objects:
        return replace(info, objects=found, objects_problem=problem)
    # The files may lack rows, or have some that do not count.
    if problem is not None:
        return replace(info, first_offset=info.durable_end, files=(), objects_problem=problem)
    end = found[-1].end if found else info.first_offset
    return replace(info, first_offset=end, durable_end=end, files=(), objects=found)


@contextlib.contextmanager
def open_view(
    settings: Settings, owner: str | None = None, credentials: ClientCredentials | None = None
) -> Iterator[FileView | OwnerView]:
    """Use the named owner, else the process that serves the folder, else the files. A named owner gets `credentials`,
    by default those of the settings."""
    served = served_by(settings) if owner is None else None
    address = owner or (served["flight"] if served is not None else None)
    if address is None:
        yield FileView(settings)
        return
    if served is not None:
        credentials = served_credentials(settings, served)
    view = OwnerView(address, credentials_of(settings.client) if credentials is None else credentials, settings)
    try:
        yield view
    finally:
        view.close()
