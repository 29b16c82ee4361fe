"""Table progress and mover state as Prometheus families."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from frazil.core.principal import ANONYMOUS
from frazil.doors.metrics.labels import Rows, bounded
from frazil.node.movers.status_file import LIVE_STATES, mover_state
from frazil.node.node import Node


class TablesCollector(Collector):
    def __init__(self, node: Node) -> None:
        self._health = node.health(ANONYMOUS)
        self._status = node.movers(ANONYMOUS).status
        self._clock = node.clock

    def collect(self) -> Iterator[Metric]:
        yield from self._tables()
        report = self._status.read() or {}
        yield from self._mover(report)
        yield from self._maintenance(report.get("maintenance") or {})
        yield from _moves(report.get("topics", {}))
        yield self._tables_ahead(report.get("topics", {}))
        yield _undecoded(report.get("topics", {}))

    def _tables_ahead(self, topics: Mapping[str, Any]) -> Metric:
        ahead = self._health.tables_ahead()
        found = _by_topic("frazil_table_ahead", "1 if its log has gone back behind its table.")
        rows: Rows = [((name,), [name in ahead]) for name in topics]
        for names, (is_ahead,) in bounded(rows):
            found.add_metric(names, is_ahead)
        return found

    def _tables(self) -> Iterator[Metric]:
        found = self._health.freshness.read()
        rows: Rows = [((one.topic,), [one.lag_rows, one.age_ms / 1_000]) for one in found]
        lag = _by_topic("frazil_table_lag_rows", "Rows that are durable and not in the table.")
        age = _by_topic("frazil_table_freshness_seconds", "Age of the oldest of them; 0 if there is none.")
        for names, (behind, seconds) in bounded(rows, [sum, max]):
            lag.add_metric(names, behind)
            age.add_metric(names, seconds)
        rows = [((one.topic,), [one.objective_ms / 1_000, one.missed]) for one in found if one.objective_ms is not None]
        objective = _by_topic("frazil_freshness_objective_seconds", "The age that its rows are to have at most.")
        missed = _by_topic("frazil_freshness_objective_missed", "1 if they are older.")
        for names, (seconds, is_missed) in bounded(rows, [min, sum]):
            objective.add_metric(names, seconds)
            missed.add_metric(names, is_missed)
        yield from (lag, age, objective, missed)

    def _mover(self, report: Mapping[str, Any]) -> Iterator[Metric]:
        lives = bool(report) and mover_state(report, self._clock) in LIVE_STATES
        yield GaugeMetricFamily("frazil_mover_alive", "1 if a mover is heard of, here or elsewhere.", value=int(lives))
        text = "1 if the mover can move nothing: its catalog, its store or Spark is away."
        yield GaugeMetricFamily("frazil_mover_failing", text, value=int(bool(report.get("error"))))
        for name, what in (("rows", "Rows moved"), ("commits", "Commits of tables"), ("failures", "Moves that failed")):
            text = f"{what}, since the mover began."
            yield CounterMetricFamily(f"frazil_mover_{name}", text, value=report.get(name, 0))

    def _maintenance(self, report: Mapping[str, Any]) -> Iterator[Metric]:
        is_failed = report.get("state") == "failed"
        yield GaugeMetricFamily("frazil_maintenance_failed", "1 if its last round failed.", value=int(is_failed))
        text = "When maintenance of the tables last changed its state."
        yield GaugeMetricFamily("frazil_maintenance_timestamp_seconds", text, value=report.get("time_us", 0) / 1e6)


def _moves(topics: Mapping[str, Any]) -> Iterator[Metric]:
    rows: Rows = [((name,), [topic.get("error") is not None]) for name, topic in topics.items()]
    failing = _by_topic("frazil_table_move_failing", "1 if its last move failed.")
    for names, (is_failing,) in bounded(rows):
        failing.add_metric(names, is_failing)
    moves = {name: topic["moved"] for name, topic in topics.items() if topic.get("moved")}
    rows = [((name,), [move["committed_us"] / 1e6, _seconds(move)]) for name, move in moves.items()]
    last = _by_topic("frazil_table_last_commit_timestamp_seconds", "When the mover last committed to its table.")
    took = _by_topic("frazil_table_last_move_seconds", "From the beginning of that move to its commit.")
    for names, (committed, seconds) in bounded(rows, [min, max]):
        last.add_metric(names, committed)
        took.add_metric(names, seconds)
    yield from (failing, last, took)


def _undecoded(topics: Mapping[str, Any]) -> Metric:
    text = "Requests that could not be decoded and went to a table of errors, since the mover began."
    found = CounterMetricFamily("frazil_telemetry_errors", text, labels=["topic"])
    rows: Rows = [((name,), [topic["undecoded"]]) for name, topic in topics.items() if topic.get("undecoded")]
    for names, (count,) in bounded(rows):
        found.add_metric(names, count)
    return found


def _seconds(move: Mapping[str, Any]) -> float:
    return float(move["committed_us"] - move["started_us"]) / 1e6


def _by_topic(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=["topic"])
