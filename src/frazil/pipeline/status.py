"""How far each table has its log: what `frazil pipeline status` shows. Asks and reads; moves and makes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from frazil.core.clock import Clock
from frazil.core.disk import LocalDisk
from frazil.core.errors import FrazilError, OwnerUnreachable
from frazil.core.offsets import OffsetRange
from frazil.core.rows import OFFSET
from frazil.core.settings import Settings
from frazil.lake.look import TableLook, TableState
from frazil.lake.tables import table_of
from frazil.log.info import LogInfo, logs_from_files
from frazil.log.ownership import served_by
from frazil.log.ranges import read_range
from frazil.pipeline.source import RemoteOwner
from frazil.pipeline.status_file import read_status


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """One topic. `table_end` is None as long as the table has none of its rows."""

    topic: str
    table: str
    log_end: int | None
    table_end: int | None
    lag_rows: int | None
    lag_bytes: int | None
    lag_ms: int | None
    committed_ms: int | None
    snapshot_id: int | None
    last_error: str | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    mover: str
    mover_pid: int | None
    mover_host: str | None
    error: str | None
    maintenance: dict[str, Any] | None
    topics: tuple[TopicStatus, ...]

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "topics": [topic.as_dict() for topic in self.topics]}


def pipeline_status(settings: Settings, clock: Clock) -> PipelineStatus:
    """The logs as their owner tells them or, where none serves, as the files are."""
    return pipeline_page(settings, clock)[0]


def pipeline_page(
    settings: Settings, clock: Clock, *, limit: int | None = None, after: str | None = None
) -> tuple[PipelineStatus, bool]:
    """Only so many topics `after` a name, and whether there are more: each costs a look at its table."""
    logs, problems = _logs(settings)
    told = read_status(settings, clock) or {}
    look = TableLook(settings)
    moved = {str(info.topic): info for info in logs if settings.of_topic(info.topic).enabled}
    names = sorted(name for name in {*moved, *problems} if after is None or name > after)
    topics = [
        _topic(moved[name], look, told, clock.now_us()) if name in moved else _unreadable(name, problems[name])
        for name in names[:limit]
    ]
    mover = told.get("state", "never ran")
    lives = mover in ("starting", "running")
    pid, host = (told.get("pid"), told.get("host")) if lives else (None, None)
    status = PipelineStatus(mover, pid, host, told.get("error"), told.get("maintenance"), tuple(topics))
    return status, limit is not None and len(names) > limit


def lag_bytes(settings: Settings, logs: Sequence[LogInfo]) -> int:
    """What waits to be moved, about: for a progress bar."""
    look = TableLook(settings)
    moved = [info for info in logs if settings.of_topic(info.topic).enabled]
    return sum(int(_behind(info, look.at(table_of(info.topic)[0], info.log_id)) * info.bytes_per_row) for info in moved)


def _logs(settings: Settings) -> tuple[list[LogInfo], dict[str, str]]:
    served = served_by(settings)
    if served is not None:
        remote = RemoteOwner(served["flight"])
        try:
            return remote.logs(), {}
        except OwnerUnreachable:
            pass  # it is going, or comes: the files are there all the same
        finally:
            remote.close()
    return logs_from_files(LocalDisk(), settings.log_folder)


def _topic(info: LogInfo, look: TableLook, told: dict[str, Any], now_us: int) -> TopicStatus:
    name, _ = table_of(info.topic)
    state = look.at(name, info.log_id)
    behind = _behind(info, state)
    last = (told.get("topics", {}).get(str(info.topic)) or {}).get("last_error") or {}
    return TopicStatus(
        topic=str(info.topic),
        table=str(name),
        log_end=info.durable_end,
        table_end=state.end,
        lag_rows=behind,
        lag_bytes=int(behind * info.bytes_per_row),
        lag_ms=_waited_ms(info, info.durable_end - behind, now_us) if behind else 0,
        committed_ms=state.committed_ms if state.end is not None else None,
        snapshot_id=state.snapshot_id if state.end is not None else None,
        last_error=state.error or last.get("message"),
    )


def _unreadable(topic: str, problem: str) -> TopicStatus:
    return TopicStatus(topic, "", None, None, None, None, None, None, None, problem)


def _behind(info: LogInfo, state: TableState) -> int:
    return max(0, info.durable_end - max(state.end or 0, info.first_offset))


def _waited_ms(info: LogInfo, offset: int, now_us: int) -> int | None:
    """How long ago the first row that waits was appended."""
    stored = pa.ipc.read_schema(pa.py_buffer(info.stored_schema))
    files = info.files
    try:
        rows = next(read_range(LocalDisk(), info.log_id, files, OffsetRange(offset, offset + 1), stored))
    except (FrazilError, OSError, StopIteration):
        return None  # elsewhere, or just removed
    assert rows.column(OFFSET.name)[0].as_py() == offset
    return max(0, now_us - int(rows.column("_append_time").cast(pa.int64())[0].as_py())) // 1_000
