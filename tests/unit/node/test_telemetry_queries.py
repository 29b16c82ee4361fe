"""The queries of the guide, on data whose answers are known. What they compute is checked against numpy."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import frazil
from frazil.core.clock import SystemClock
from frazil.core.settings import Settings
from frazil.node.query.session import SqlSession
from frazil.node.tiers.logs import FileView
from frazil.telemetry.signals import Signal
from parts.telemetry import attributes, metrics, records, send, span, spans, trace

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "telemetry-queries.md"
S, MINUTE = 10**9, 60 * 10**9
MS = 10**6
DELTA, CUMULATIVE = 1, 2
RNG = np.random.default_rng(11)

Answer = list[dict[str, Any]]
Ask = Callable[[str], Answer]


def query(heading: str) -> str:
    text = GUIDE.read_text(encoding="utf-8")
    found = re.search(rf"^### {re.escape(heading)}\n.*?```sql\n(.*?)```", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.fixture
def ask(settings: Settings) -> Ask:
    def run(heading: str) -> Answer:
        with SqlSession(settings, FileView(settings), confined=True) as session:
            return [row for batch in session.run(query(heading)).batches for row in batch.to_pylist()]

    return run


@pytest.fixture
def now_ns() -> int:
    return SystemClock().now_us() * 1_000


def at(now_ns: int, ago_ns: int) -> int:
    """Nanoseconds for `spans` and `records`, which count from their own start."""
    from parts.telemetry import START_NS

    return now_ns - ago_ns - START_NS


def test_errors_by_service(ask: Ask, storage: frazil.Storage, now_ns: int) -> None:
    recent, old = at(now_ns, MINUTE), at(now_ns, 90 * MINUTE)
    bad = [{"body": body, "severity": 17, "at_ns": recent} for body in ("a", "b", "b")]
    fine = {"body": "fine", "severity": 16, "at_ns": recent}
    send(storage, Signal.LOGS, [records("shop", *bad, fine), records("bank", {**bad[0], "severity": 21})])
    send(storage, Signal.LOGS, [records("bank", {**bad[0], "at_ns": old})])
    found = ask("Errors by service")
    assert [(one["service_name"], one["errors"], one["most_frequent"]) for one in found] == [
        ("shop", 3, "b"), ("bank", 1, "a")
    ]  # fmt: skip


def test_slowest_operations(ask: Ask, storage: frazil.Storage, now_ns: int) -> None:
    took_ms = {"load": RNG.uniform(1, 100, 500), "pay": RNG.exponential(40, 500)}
    given = [
        {"trace": trace(n + 1), "id": span(n + 1), "name": name, "kind": 2, "duration_ns": int(ms * MS)}
        | {"start_ns": at(now_ns, MINUTE)}
        for name, values in took_ms.items()
        for n, ms in enumerate(values)
    ]
    send(storage, Signal.TRACES, [spans("shop", *given), spans("shop", {**given[0], "kind": 1})])
    found = {one["span_name"]: one for one in ask("Slowest operations")}
    for name, values in took_ms.items():
        exact = (values * MS).astype(np.int64) / MS
        assert found[name]["spans"] == 500
        assert found[name]["p50_ms"] == pytest.approx(np.percentile(exact, 50))
        assert found[name]["p99_ms"] == pytest.approx(np.percentile(exact, 99))
        assert found[name]["max_ms"] == pytest.approx(exact.max())


def test_service_graph(ask: Ask, storage: frazil.Storage, now_ns: int) -> None:
    start, took = at(now_ns, MINUTE), RNG.integers(1, 10**9, 40)
    parents = [{"trace": trace(n + 1), "id": span(1), "start_ns": start} for n in range(40)]
    children = [
        {"trace": trace(n + 1), "id": span(2), "parent": span(1), "start_ns": start, "duration_ns": int(took[n])}
        | {"status": 2 * (n % 10 == 0)}
        for n in range(40)
    ]
    within = [{"trace": trace(1), "id": span(3), "parent": span(1), "start_ns": start}]
    orphans = [{"trace": trace(1), "id": span(4), "parent": span(9), "start_ns": start}]
    send(storage, Signal.TRACES, [spans("web", *parents, *within), spans("bank", *children, *orphans)])
    (found,) = ask("Service graph")
    p95 = found.pop("p95_ms")
    assert found == {"caller": "web", "callee": "bank", "calls": 40, "errors": 4}
    assert p95 == pytest.approx(np.percentile(took, 95) / MS)


BOUNDS = [5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0]


def add_histogram(
    scope: Any, values: Sequence[float], time_ns: int, start_ns: int, temporality: int, route: str = "/"
) -> None:
    metric = scope.metrics.add(name="http.server.request.duration", unit="ms").histogram
    metric.aggregation_temporality = temporality
    counts = np.bincount(np.searchsorted(BOUNDS, values, side="left"), minlength=len(BOUNDS) + 1)
    point = metric.data_points.add(
        time_unix_nano=time_ns, start_time_unix_nano=start_ns, count=len(values), bucket_counts=counts.tolist()
    )
    point.explicit_bounds.extend(BOUNDS)
    attributes(point, {"route": route})


def percentile_in_buckets(values: Sequence[float]) -> float:
    """By numpy: the place of the 99th percentile on the line through the buckets' ends."""
    within = np.histogram(np.minimum(values, BOUNDS[-1]), [-math.inf, *BOUNDS])[0]
    return float(np.interp(0.99 * len(values), np.concatenate([[0], np.cumsum(within)]), [0, *BOUNDS]))


def test_a_percentile_from_histograms_of_both_temporalities(ask: Ask, storage: frazil.Storage, now_ns: int) -> None:
    old, first, second, third = (RNG.gamma(2, 20, size) for size in (400, 300, 200, 500))
    request, scope = metrics("cumulative")
    start, restarted = now_ns - 200 * MINUTE, now_ns - 20 * MINUTE
    add_histogram(scope, old, now_ns - 90 * MINUTE, start, CUMULATIVE)
    add_histogram(scope, [*old, *first[:100]], now_ns - 50 * MINUTE, start, CUMULATIVE)
    add_histogram(scope, [*old, *first], now_ns - 30 * MINUTE, start, CUMULATIVE)
    add_histogram(scope, second, now_ns - 10 * MINUTE, restarted, CUMULATIVE)  # after a restart
    add_histogram(scope, third, now_ns - 10 * MINUTE, start, CUMULATIVE, "/other")
    add_histogram(scope, old, now_ns - 80 * MINUTE, start, CUMULATIVE, "/no-more")  # nothing since
    deltas, delta_scope = metrics("delta")
    for part, ago in ((old, 70), (first, 50), (second, 40), (third, 10)):
        add_histogram(delta_scope, part, now_ns - ago * MINUTE, now_ns - (ago + 10) * MINUTE, DELTA)
    send(storage, Signal.METRICS, [request.SerializeToString(), deltas.SerializeToString()])
    wanted = percentile_in_buckets([*first, *second, *third])
    found = {one["service_name"]: one["p99"] for one in ask("A percentile from histograms")}
    assert found == {"cumulative": pytest.approx(wanted), "delta": pytest.approx(wanted)}


def test_beyond_the_last_bound_a_percentile_is_that_bound(ask: Ask, storage: frazil.Storage, now_ns: int) -> None:
    request, scope = metrics("slow")
    add_histogram(scope, [1.0] * 50 + [9_000.0] * 50, now_ns - MINUTE, now_ns - 2 * MINUTE, DELTA)
    send(storage, Signal.METRICS, [request.SerializeToString()])
    assert ask("A percentile from histograms") == [{"service_name": "slow", "p99": 500.0}]


def add_exponential(scope: Any, values: np.ndarray, scale: int, time_ns: int, start_ns: int, temporality: int) -> None:
    metric = scope.metrics.add(name="http.client.request.duration").exponential_histogram
    metric.aggregation_temporality = temporality
    point = metric.data_points.add(
        time_unix_nano=time_ns, start_time_unix_nano=start_ns, count=len(values), scale=scale,
        zero_count=int((values == 0).sum()),
    )  # fmt: skip
    for side, own in ((point.positive, values[values > 0]), (point.negative, -values[values < 0])):
        if len(own):
            places = np.ceil(np.log2(own) * 2.0**scale).astype(int) - 1
            side.offset = int(places.min())
            side.bucket_counts.extend(np.bincount(places - places.min()).tolist())


@pytest.mark.parametrize("sign", [1, -1])
def test_a_percentile_from_exponential_histograms(ask: Ask, storage: frazil.Storage, now_ns: int, sign: int) -> None:
    parts = [sign * RNG.lognormal(3, 1, size) for size in (500, 700, 900)]
    parts[0][:40] = 0
    both = RNG.normal(0, 50, 800)
    start = now_ns - 200 * MINUTE
    request, scope = metrics("delta")
    for part, scale in zip(parts, (5, 3, 4), strict=True):
        add_exponential(scope, part, scale, now_ns - MINUTE, now_ns - 2 * MINUTE, DELTA)
    cumulative, cumulative_scope = metrics("cumulative")
    add_exponential(cumulative_scope, parts[0], 6, now_ns - 70 * MINUTE, start, CUMULATIVE)
    add_exponential(cumulative_scope, np.concatenate(parts), 3, now_ns - 5 * MINUTE, start, CUMULATIVE)
    mixed, mixed_scope = metrics("both signs")
    add_exponential(mixed_scope, both, 4, now_ns - MINUTE, start, DELTA)
    send(storage, Signal.METRICS, [one.SerializeToString() for one in (request, cumulative, mixed)])
    found = {one["service_name"]: one["p99"] for one in ask("A percentile from exponential histograms")}
    for service, values, scale in (
        ("delta", np.concatenate(parts), 3),
        ("cumulative", np.concatenate(parts[1:]), 3),
        ("both signs", both, 4),
    ):
        exact = np.sort(values)[math.ceil(0.99 * len(values)) - 1]
        width = 2 ** (2.0**-scale)
        assert found[service] == pytest.approx(exact, rel=width - 1), service  # it is in the same bucket


def test_the_rate_of_a_counter(ask: Ask, storage: frazil.Storage, now_ns: int) -> None:
    minute = (now_ns // MINUTE - 10) * MINUTE
    request, scope = metrics("shop")
    counter = scope.metrics.add(name="orders").sum
    counter.is_monotonic, counter.aggregation_temporality = True, CUMULATIVE
    points = [
        (-70, 100, 0), (0, 160, 0), (1, 400, 0),  # 60 and 240 more
        (2, 30, 2), (3, 90, 2),  # restarted, with another start: 30 and 60
        (4, 12, 2),  # restarted, and the sender says nothing of it: 12
    ]  # fmt: skip
    for after, value, start in points:
        one = counter.data_points.add(as_int=value, time_unix_nano=minute + after * MINUTE + S)
        one.start_time_unix_nano = minute - 200 * MINUTE + start
    delta = scope.metrics.add(name="orders").sum
    delta.is_monotonic, delta.aggregation_temporality = True, DELTA
    for value in (6, 18):
        one = delta.data_points.add(as_double=value, time_unix_nano=minute + 5 * MINUTE + S + value)
        attributes(one, {"delta": True})
    send(storage, Signal.METRICS, [request.SerializeToString()])
    found = [one["per_second"] for one in ask("The rate of a counter")]
    assert found == [1.0, 4.0, 0.5, 1.0, 0.2, 0.4]


def test_every_query_of_the_guide_is_run_here() -> None:
    headings = re.findall(r"^### (.+)$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    own = Path(__file__).read_text(encoding="utf-8")
    assert [heading for heading in headings if f'ask("{heading}")' not in own] == []
