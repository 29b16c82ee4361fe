"""Whether all is as it should be, and what is not: the same for `/health/ready` and for the metric."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from frazil.core.clock import Clock
from frazil.pipeline.status_file import mover_state
from frazil.serve.opening import Opening
from frazil.topics.floor import ToldStatus
from frazil.topics.freshness import Freshness, TopicFreshness

Problems = Callable[[], list[dict[str, Any]]]


class Readiness:
    """Topics that are broken, and those that miss an objective. Both recover by themselves, as their cause goes."""

    def __init__(self, opening: Opening, also: Problems = list) -> None:
        self._also = also
        self.opening = opening

    def problems(self) -> list[dict[str, Any]]:
        return self.opening.problems() + self._also()

    @property
    def ready(self) -> bool:
        return self.opening.done and not self.problems()


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
