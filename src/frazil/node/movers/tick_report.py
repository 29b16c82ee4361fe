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
    undecoded: dict[str, int] = field(default_factory=dict)
    """By topic, how many rows this tick has moved to a table of errors."""
    is_unfinished: bool = False
    """Whether a topic was not moved because one of its tables was found to be ahead."""

    def followed_by(self, later: TickReport) -> TickReport:
        """Return what both did, with the topics as they were after the later one."""
        for name, topic in later.topics.items():
            before = self.topics.get(name)
            topic.moved = topic.moved or (None if before is None else before.moved)
        undecoded = dict(self.undecoded)
        for name, rows in later.undecoded.items():
            undecoded[name] = undecoded.get(name, 0) + rows
        return TickReport(
            self.rows + later.rows,
            self.commits + later.commits,
            later.topics,
            self.failures + later.failures,
            undecoded,
        )

    @property
    def lag_rows(self) -> int:
        return sum(topic.lag_rows for topic in self.topics.values())
