"""Whether all is as it should be, and what is not: the same for `/health/ready` and for the metric."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from frazil.core.clock import Clock
from frazil.core.errors import TableAhead
from frazil.log.storage import Storage
from frazil.pipeline.status_file import mover_state
from frazil.serve.opening import Opening
from frazil.topics.floor import ToldStatus
from frazil.topics.freshness import Freshness, TopicFreshness
from frazil.topics.table_ahead import tables_ahead

Problems = Callable[[], list[dict[str, Any]]]


class Readiness:
    """Topics that are broken, and what else is wrong with some. It recovers by itself, as the cause goes.

    `warnings` are problems that leave it ready: publishing and reading the log go on without the mover.
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
    """Each topic whose log has gone back behind its table: nothing of it is moved until a person mends that."""

    def __init__(self, storage: Storage, told: ToldStatus) -> None:
        self._storage = storage
        self._told = told

    def __call__(self) -> list[dict[str, Any]]:
        return [
            {"topic": name, "error": TableAhead.code, "message": message} for name, message in self.messages().items()
        ]

    def messages(self) -> dict[str, str]:
        """By topic, what is wrong."""
        told = self._told.read()  # before the logs: they only grow, so no move that is told of can look ahead of them
        logs = [topic.log for topic in self._storage.opened_topics()]
        former = {one.log_id for log in logs for one in log.former}
        return tables_ahead(told, {log.log_id: log.durable_end for log in logs}, former)


class KeptRows:
    """Topics whose expired rows are kept because a guard of retention can't answer."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def __call__(self) -> list[dict[str, Any]]:
        """But for logs behind their tables, which `BehindTheirTables` reports where a mover has met them."""
        return [one for one in self._all() if one["error"] != TableAhead.code]

    def ahead(self) -> list[dict[str, Any]]:
        """Those that need a person: the table is ahead of the log."""
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


class MissedObjectives:
    """Each topic whose table is older than it may be, with what to look at."""

    def __init__(self, freshness: Freshness, told: ToldStatus, clock: Clock) -> None:
        self._freshness = freshness
        self._told = told
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
        told = self._told.read()
        if told is None:
            return "no mover has ever run here"
        error = told.get("topics", {}).get(topic, {}).get("error") or told.get("error")
        if error:
            return f"the mover's last error is: {error}"
        return f"the mover is {mover_state(told, self._clock)}"


class MoverProblems:
    """What keeps rows from their tables, by name: `mover_missing`, `mover_gone`, `lake_unavailable`, `mover_failed` or
    `tables_failing`."""

    def __init__(self, told: ToldStatus, clock: Clock, *, has_mover: bool, missing: str | None = None) -> None:
        """`missing` is why a mover that the settings want could not be started here."""
        self._told = told
        self._clock = clock
        self._has_mover = has_mover
        self._missing = missing

    def __call__(self) -> list[dict[str, Any]]:
        if self._missing is not None:
            return [_problem("mover_missing", f"rows are not moved to tables: {self._missing}")]
        told = self._told.read()
        return [] if told is None else list(self._found(told))

    def _found(self, told: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        state, error = mover_state(told, self._clock), told.get("error")
        if state == "waiting":
            times = {"since_us": told.get("since_us"), "next_try_us": told.get("next_try_us")}
            yield _problem("lake_unavailable", f"the mover waits, and rows stay in the log: {error}", **times)
        elif error:
            yield _problem("mover_failed", f"the mover is {state}, and rows stay in the log: {error}")
        elif state == "gone" and self._has_mover:
            yield _problem("mover_gone", "the mover ended without a word, and is started again")
        failing = {name: topic["error"] for name, topic in told.get("topics", {}).items() if topic.get("error")}
        if failing:
            first = min(failing)
            message = f"{len(failing)} topics are not moved to their tables; {first}: {failing[first]}"
            yield _problem("tables_failing", message, count=len(failing), topic=first)


def _problem(error: str, message: str, **fields: Any) -> dict[str, Any]:
    return {"error": error, "message": f"{message}; see frazil pipeline status", **fields}
