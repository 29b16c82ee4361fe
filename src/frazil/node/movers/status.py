"""The status of each table and its log, for `frazil pipeline status`. Read-only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from frazil.core.clock import Clock
from frazil.core.disk import LocalDisk
from frazil.core.disk.json_file import read_json
from frazil.core.errors import FrazilError, OwnerUnreachable, TableAhead
from frazil.core.offsets import OffsetRange
from frazil.core.rows import OFFSET
from frazil.core.settings import Settings
from frazil.lake.tables.look import NOTHING_YET, LookResult, look_at
from frazil.lake.tables.schema import TableName, table_of
from frazil.log.folder.ownership import served_by
from frazil.log.info import LogInfo, logs_from_files
from frazil.log.read.ranges import read_range
from frazil.node.access.served import served_credentials
from frazil.node.movers.log_source import RemoteOwner
from frazil.node.movers.status_file import LIVE_STATES, mover_state
from frazil.node.movers.table_progress import known_end, status_path


@dataclass(frozen=True, slots=True)
class TopicProgress:
    """One topic. `table_end` is None if the table has none of its rows, or nothing is known about it.

    `table_time_us` is the time of that information: now or, if the catalog does not answer, that of the mover's last
    report.
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
class PipelineProgress:
    """The state of the mover and its topics. `error` is the mover's; `lake_error` is why the lake does not answer now.

    A waiting mover reports since when it waits, and when it retries.
    """

    mover: str
    mover_pid: int | None
    mover_host: str | None
    error: str | None
    since_us: int | None
    next_try_us: int | None
    lake_error: str | None
    maintenance: dict[str, Any] | None
    topics: tuple[TopicProgress, ...]

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "topics": [topic.as_dict() for topic in self.topics]}


def pipeline_status(settings: Settings, clock: Clock) -> PipelineProgress:
    """Report on all logs, from their owner or else from the files; raises `NewerFormat` for a newer status file."""
    logs, problems = _logs(settings)
    return pipeline_page(settings, clock, logs, read_json(status_path(settings), refuse_newer=True), problems)[0]


def pipeline_page(
    settings: Settings,
    clock: Clock,
    logs: Sequence[LogInfo],
    report: dict[str, Any] | None,
    problems: Mapping[str, str] | None = None,
    *,
    limit: int | None = None,
    after: str | None = None,
) -> tuple[PipelineProgress, bool]:
    """Report on at most `limit` topics `after` a name, and whether there are more: each topic costs a catalog request.

    `report` is the mover's last report; `problems` are topics whose logs can't be read, with the reason.
    """
    report = {} if report is None else {**report, "state": mover_state(report, clock)}
    problems = problems or {}
    moved = {str(info.topic): info for info in logs if settings.of_topic(info.topic).enabled}
    names = sorted(name for name in {*moved, *problems} if after is None or name > after)
    shown = names[:limit]
    looked = look_at(settings, [_key(moved[name]) for name in shown if name in moved])
    topics = [
        _topic(moved[name], looked, report, clock.now_us()) if name in moved else _unreadable(name, problems[name])
        for name in shown
    ]
    status = PipelineProgress(
        mover=report.get("state", "never ran"),
        error=report.get("error"),
        lake_error=looked.error,
        maintenance=report.get("maintenance"),
        topics=tuple(topics),
        **_of_a_live_mover(report),
    )
    return status, limit is not None and len(names) > limit


def _of_a_live_mover(report: dict[str, Any]) -> dict[str, Any]:
    if report.get("state") not in LIVE_STATES:
        report = {}
    return {
        "mover_pid": report.get("pid"),
        "mover_host": report.get("host"),
        "since_us": report.get("since_us"),
        "next_try_us": report.get("next_try_us"),
    }


def lag_bytes(settings: Settings, logs: Sequence[LogInfo]) -> int:
    """Estimate the bytes that wait to be moved, for a progress bar. A table that does not answer counts as complete."""
    moved = [info for info in logs if settings.of_topic(info.topic).enabled]
    looked = look_at(settings, [_key(info) for info in moved])
    states = [(info, looked.state(*_key(info))) for info in moved]
    return sum(int(_behind(info, state.end) * info.bytes_per_row) for info, state in states if state is not None)


def _key(info: LogInfo) -> tuple[TableName, str]:
    return table_of(info.topic)[0], info.log_id


def _logs(settings: Settings) -> tuple[list[LogInfo], dict[str, str]]:
    served = served_by(settings)
    if served is not None:
        remote = RemoteOwner(served["flight"], served_credentials(settings, served))
        try:
            return remote.logs(), {}
        except OwnerUnreachable:
            pass  # it is stopping or starting: the files exist anyway
        finally:
            remote.close()
    return logs_from_files(LocalDisk(), settings.log_folder)


def _topic(info: LogInfo, looked: LookResult, report: dict[str, Any], now_us: int) -> TopicProgress:
    """Use the table itself, or else the mover's last report about it."""
    name, log_id = _key(info)
    state = looked.state(name, log_id)
    last = _report_on(info, report).get("last_error") or {}
    error: str | None = last.get("message")
    end: int | None
    time_us: int | None
    if state is not None:
        end, time_us = state.end, now_us
        error = state.error or error
    else:
        known = known_end(report, str(info.topic), log_id)
        end, time_us = known if known is not None else (None, None)
        error = looked.reason(name) or error
        state = NOTHING_YET
    behind = _behind(info, end)
    return TopicProgress(
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


def _report_on(info: LogInfo, report: dict[str, Any]) -> dict[str, Any]:
    """Return the mover's report about the log; a report about a former log, which was renumbered since, is ignored."""
    found: dict[str, Any] = report.get("topics", {}).get(str(info.topic)) or {}
    return {} if found.get("log_id") in {one.log_id for one in info.former} else found


def _ahead(info: LogInfo, table: str, end: int | None) -> str | None:
    """Report a log that is behind its table at once, whether or not a mover has checked since."""
    if end is None or end <= info.durable_end:
        return None
    return TableAhead(str(info.topic), table, end, info.durable_end).message


def _unreadable(topic: str, problem: str) -> TopicProgress:
    return TopicProgress(topic, "", None, None, None, None, None, None, None, problem)


def _behind(info: LogInfo, table_end: int | None) -> int:
    return max(0, info.durable_end - max(table_end or 0, info.held_from))


def _waited_ms(info: LogInfo, offset: int, now_us: int) -> int | None:
    """Return the age of the first waiting row."""
    stored = pa.ipc.read_schema(pa.py_buffer(info.stored_schema))
    files = info.files
    try:
        rows = next(read_range(LocalDisk(), info.log_id, files, OffsetRange(offset, offset + 1), stored))
    except (FrazilError, OSError, StopIteration):
        return None  # elsewhere, or just removed
    assert rows.column(OFFSET.name)[0].as_py() == offset
    return max(0, now_us - int(rows.column("_append_time").cast(pa.int64())[0].as_py())) // 1_000
