"""The result of a mover's tick, for the status file, the command line and metrics."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Move:
    """A moved range: when its job began, when its files were written, when the table had them."""

    start: int
    end: int
    started_us: int
    written_us: int
    committed_us: int
    snapshot_id: int | None


@dataclass(slots=True)
class TopicReport:
    """The state of one topic after a tick."""

    topic: str
    log_id: str
    table: str
    log_end: int
    table_end: int
    lag_bytes: float
    error: str | None = None
    error_code: str | None = None
    moved: Move | None = None
    """The range that this tick has moved."""

    @property
    def lag_rows(self) -> int:
        return self.log_end - self.table_end


@dataclass(slots=True)
class TickReport:
    rows: int = 0
    commits: int = 0
    topics: dict[str, TopicReport] = field(default_factory=dict)
    failures: int = 0

    @property
    def lag_rows(self) -> int:
        return sum(topic.lag_rows for topic in self.topics.values())
