"""How far each table has its log: what `frazil pipeline status` shows. Asks and reads; moves and makes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from frazil.core.clock import Clock
from frazil.core.disk import LocalDisk
from frazil.core.errors import FrazilError, OwnerUnreachable, TableAhead
from frazil.core.offsets import OffsetRange
from frazil.core.rows import OFFSET
from frazil.core.settings import Settings
from frazil.lake.look import NOTHING_YET, Looked, look_at
from frazil.lake.tables import TableName, table_of
from frazil.log.info import LogInfo, logs_from_files
from frazil.log.ownership import served_by
from frazil.log.ranges import read_range
from frazil.pipeline.source import RemoteOwner
from frazil.pipeline.status_file import LIVE_STATES, read_status
from frazil.topics.floor import known_end


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """One topic. `table_end` is None as long as the table has none of its rows, or nothing is known of it.

    `table_time_us` is when that was learnt: now, or, where the catalog does not answer, when the mover last knew.
    """

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
    table_time_us: int | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """`error` is the mover's own; `lake_error` is why the catalog or the store did not answer this look.

    A mover that waits says since when, and when it tries again.
    """

    mover: str
    mover_pid: int | None
    mover_host: str | None
    error: str | None
    since_us: int | None
    next_try_us: int | None
    lake_error: str | None
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
    moved = {str(info.topic): info for info in logs if settings.of_topic(info.topic).enabled}
    names = sorted(name for name in {*moved, *problems} if after is None or name > after)
    shown = names[:limit]
    looked = look_at(settings, [_key(moved[name]) for name in shown if name in moved])
    topics = [
        _topic(moved[name], looked, told, clock.now_us()) if name in moved else _unreadable(name, problems[name])
        for name in shown
    ]
    status = PipelineStatus(
        mover=told.get("state", "never ran"),
        error=told.get("error"),
        lake_error=looked.error,
        maintenance=told.get("maintenance"),
        topics=tuple(topics),
        **_of_a_live_mover(told),
    )
    return status, limit is not None and len(names) > limit


def _of_a_live_mover(told: dict[str, Any]) -> dict[str, Any]:
    if told.get("state") not in LIVE_STATES:
        told = {}
    return {
        "mover_pid": told.get("pid"),
        "mover_host": told.get("host"),
        "since_us": told.get("since_us"),
        "next_try_us": told.get("next_try_us"),
    }


def lag_bytes(settings: Settings, logs: Sequence[LogInfo]) -> int:
    """What waits to be moved, about: for a progress bar. A table that does not answer counts as complete."""
    moved = [info for info in logs if settings.of_topic(info.topic).enabled]
    looked = look_at(settings, [_key(info) for info in moved])
    states = [(info, looked.state(*_key(info))) for info in moved]
    return sum(int(_behind(info, state.end) * info.bytes_per_row) for info, state in states if state is not None)


def _key(info: LogInfo) -> tuple[TableName, str]:
    return table_of(info.topic)[0], info.log_id


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


def _topic(info: LogInfo, looked: Looked, told: dict[str, Any], now_us: int) -> TopicStatus:
    """From the table itself, else from what the mover last knew of it."""
    name, log_id = _key(info)
    state = looked.state(name, log_id)
    last = _told_of(info, told).get("last_error") or {}
    error: str | None = last.get("message")
    end: int | None
    time_us: int | None
    if state is not None:
        end, time_us = state.end, now_us
        error = state.error or error
    else:
        known = known_end(told, str(info.topic), log_id)
        end, time_us = known if known is not None else (None, None)
        error = looked.reason(name) or error
        state = NOTHING_YET
    behind = _behind(info, end)
    return TopicStatus(
        topic=str(info.topic),
        table=str(name),
        log_end=info.durable_end,
        table_end=end,
        lag_rows=behind,
        lag_bytes=int(behind * info.bytes_per_row),
        lag_ms=_waited_ms(info, info.durable_end - behind, now_us) if behind else 0,
        committed_ms=state.committed_ms if state.end is not None else None,
        snapshot_id=state.snapshot_id if state.end is not None else None,
        last_error=_ahead(info, str(name), end) or error,
        table_time_us=time_us,
    )


def _told_of(info: LogInfo, told: dict[str, Any]) -> dict[str, Any]:
    """What the mover told of the log; what it told of a former one, which was renumbered since, counts no more."""
    found: dict[str, Any] = told.get("topics", {}).get(str(info.topic)) or {}
    return {} if found.get("log_id") in {one.log_id for one in info.former} else found


def _ahead(info: LogInfo, table: str, end: int | None) -> str | None:
    """That the log has gone back behind its table shows at once, whether or not a mover has looked since."""
    if end is None or end <= info.durable_end:
        return None
    return TableAhead(str(info.topic), table, end, info.durable_end).message


def _unreadable(topic: str, problem: str) -> TopicStatus:
    return TopicStatus(topic, "", None, None, None, None, None, None, None, problem)


def _behind(info: LogInfo, table_end: int | None) -> int:
    return max(0, info.durable_end - max(table_end or 0, info.first_offset))


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
