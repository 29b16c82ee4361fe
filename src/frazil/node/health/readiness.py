"""Readiness and its problems: one source for `/health/ready` and the metric."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from frazil.core.clock import Clock
from frazil.core.errors import TableAhead, TopicUnavailable
from frazil.core.names import TopicName
from frazil.core.settings import AckLevel
from frazil.core.settings.exposure import exposed_doors
from frazil.log.storage import Storage
from frazil.node.movers.movers import Movers
from frazil.node.movers.status_file import mover_state
from frazil.node.movers.table_ahead import tables_ahead
from frazil.node.movers.table_progress import MoverStatus
from frazil.node.objects.figures import parts_of
from frazil.node.topics.freshness import Freshness, TopicFreshness
from frazil.node.topics.startup import Opening

Problems = Callable[[], list[dict[str, Any]]]


class Readiness:
    """Broken topics and other problems. It recovers automatically once the cause is gone.

    `warnings` are problems that leave it ready: publishing and reading the log work without the mover.
    """

    def __init__(self, opening: Opening, also: Problems = list, warnings: Problems = list) -> None:
        self._also = also
        self.opening = opening
        self.warnings = warnings

    def problems(self) -> list[dict[str, Any]]:
        return self.opening.problems() + self._also()

    @property
    def ready(self) -> bool:
        return self.opening.done and not self.problems()


class BehindTheirTables:
    """Topics whose log is behind its table: no row of them is moved until an administrator acts."""

    def __init__(self, storage: Storage, status: MoverStatus) -> None:
        self._storage = storage
        self._status = status

    def __call__(self) -> list[dict[str, Any]]:
        return [
            {"topic": name, "error": TableAhead.code, "message": message} for name, message in self.messages().items()
        ]

    def messages(self) -> dict[str, str]:
        """Return the problem by topic."""
        report = (
            self._status.read()
        )  # before the logs: they only grow, so no reported move can seem to be ahead of them
        logs = [topic.log for topic in self._storage.opened_topics()]
        former = {one.log_id for log in logs for one in log.former}
        return tables_ahead(report, {log.log_id: log.durable_end for log in logs}, former)


class KeptRows:
    """Topics whose expired rows are kept because a guard of retention cannot answer."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def __call__(self) -> list[dict[str, Any]]:
        """Exclude logs behind their tables, which `BehindTheirTables` reports once a mover has detected them."""
        return [one for one in self._all() if one["error"] != TableAhead.code]

    def ahead(self) -> list[dict[str, Any]]:
        """Return those that need an administrator: the table is ahead of the log."""
        return [one for one in self._all() if one["error"] == TableAhead.code]

    def _all(self) -> list[dict[str, Any]]:
        return [
            {
                **kept.error,
                "message": f"{kept.topic} is kept past its retention: its {kept.guard} can't answer: {kept.message}",
                "topic": kept.topic,
                "guard": kept.guard,
                "since_us": kept.since_us,
            }
            for kept in self._storage.kept_by_guards()
        ]


class UploadProblems:
    """Topics whose upload to the object store fails."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def __call__(self) -> list[dict[str, Any]]:
        parts = parts_of(self._storage)
        return [
            {
                "error": one.code,
                "message": f"{one.topic} is not uploaded to the object store: {one.message}",
                "topic": one.topic,
                "since_us": one.since_us,
            }
            for one in ([] if parts is None else parts.uploader.problems())
        ]


class SilentTopics:
    """Topics of ack level `object` that acknowledge nothing now: the store is away, or they have another owner."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def __call__(self) -> list[dict[str, Any]]:
        logs = [topic.log for topic in self._storage.opened_topics() if topic.log.ack is AckLevel.OBJECT]
        found = [(str(log.name), log.problem) for log in logs]
        return [
            {"topic": name, "error": problem.code, "message": f"{name} acknowledges nothing now: {problem.message}"}
            for name, problem in sorted(found, key=lambda one: one[0])
            if problem is not None
        ]


class MissedObjectives:
    """Topics whose table misses its freshness objective, with what to check."""

    def __init__(self, freshness: Freshness, status: MoverStatus, clock: Clock) -> None:
        self._freshness = freshness
        self._status = status
        self._clock = clock

    def __call__(self) -> list[dict[str, Any]]:
        return [self._reason(one) for one in self._freshness.missed()]

    def _reason(self, one: TopicFreshness) -> dict[str, Any]:
        assert one.objective_ms is not None
        message = (
            f"{one.topic}: rows that are not in its table: {one.lag_rows}, the oldest for {one.age_ms / 1_000:.1f} s;"
            f" the objective is {one.objective_ms / 1_000:g} s; {self._why(one.topic)}; see frazil pipeline status"
        )
        fields = {"lag_rows": one.lag_rows, "freshness_ms": one.age_ms, "objective_ms": one.objective_ms}
        return {"topic": one.topic, "error": "freshness_objective_missed", "message": message, **fields}

    def _why(self, topic: str) -> str:
        report = self._status.read()
        if report is None:
            return "no mover has ever run here"
        error = report.get("topics", {}).get(topic, {}).get("error") or report.get("error")
        if error:
            return f"the mover's last error is: {error}"
        return f"the mover is {mover_state(report, self._clock)}"


class MoverProblems:
    """Reports why rows are not moved: `mover_missing`, `mover_gone`, `lake_unavailable`, `mover_failed` or
    `tables_failing`."""

    def __init__(self, status: MoverStatus, clock: Clock, *, has_mover: bool, missing: str | None = None) -> None:
        """`missing` is why a configured mover could not be started here."""
        self._status = status
        self._clock = clock
        self._has_mover = has_mover
        self._missing = missing

    def __call__(self) -> list[dict[str, Any]]:
        if self._missing is not None:
            return [_problem("mover_missing", f"rows are not moved to tables: {self._missing}")]
        report = self._status.read()
        return [] if report is None else list(self._found(report))

    def _found(self, report: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        state, error = mover_state(report, self._clock), report.get("error")
        if state == "waiting":
            times = {"since_us": report.get("since_us"), "next_try_us": report.get("next_try_us")}
            yield _problem("lake_unavailable", f"the mover waits, and rows stay in the log: {error}", **times)
        elif error:
            yield _problem("mover_failed", f"the mover is {state}, and rows stay in the log: {error}")
        elif state == "gone" and self._has_mover:
            yield _problem("mover_gone", "the mover ended without a word, and is started again")
        failing = {name: topic["error"] for name, topic in report.get("topics", {}).items() if topic.get("error")}
        if failing:
            first = min(failing)
            message = f"{len(failing)} topics are not moved to their tables; {first}: {failing[first]}"
            yield _problem("tables_failing", message, count=len(failing), topic=first)


class NodeHealth(Readiness):
    """The readiness of a serving process: broken topics and all other problems."""

    def __init__(
        self, storage: Storage, movers: Movers, clock: Clock, problems_of_topics: Callable[[], Mapping[TopicName, str]]
    ) -> None:
        """`problems_of_topics`: why topics of this broker of a cluster are not served, by their names."""
        status, has_mover = movers.status, movers.child is not None
        super().__init__(Opening(storage), self._problems, self._warnings)
        self.freshness = Freshness(storage, status, clock, always=has_mover)
        self._missed = MissedObjectives(self.freshness, status, clock)
        self._behind = BehindTheirTables(storage, status)
        self._kept = KeptRows(storage)
        self._not_served = problems_of_topics
        self._exposed = [{"error": "insecure", "message": one} for one in exposed_doors(storage.settings)]
        self._uploads = UploadProblems(storage)
        self._silent = SilentTopics(storage)
        self._mover = MoverProblems(status, clock, has_mover=has_mover, missing=movers.missing)

    def tables_ahead(self) -> dict[str, str]:
        """Return the problem by topic, for each topic whose log is behind its table."""
        return self._behind.messages()

    def _problems(self) -> list[dict[str, Any]]:
        behind = self._behind()
        known = {one["topic"] for one in behind}  # each topic once, whether the mover or retention detected it
        return behind + [one for one in self._kept.ahead() if one["topic"] not in known] + self._missed()

    def _warnings(self) -> list[dict[str, Any]]:
        return self._exposed + self._mover() + self._kept() + self._uploads() + self._silent() + self._unavailable()

    def _unavailable(self) -> list[dict[str, Any]]:
        code, found = TopicUnavailable.code, sorted(self._not_served().items())
        return [{"topic": str(name), "error": code, "message": f"{name}: {why}"} for name, why in found]


def _problem(error: str, message: str, **fields: Any) -> dict[str, Any]:
    return {"error": error, "message": f"{message}; see frazil pipeline status", **fields}
