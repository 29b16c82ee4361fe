"""The figures of `frazil top`, computed from two scrapes of `/metrics`. A figure that the server lacks is None."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

Labels = tuple[tuple[str, str], ...]
"""Label pairs, sorted by name."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """The values of `/metrics` by name and labels, and the monotonic time of the scrape."""

    at_seconds: float
    values: Mapping[str, Mapping[Labels, float]]

    def value(self, name: str, **labels: str) -> float | None:
        return self.values.get(name, {}).get(tuple(sorted(labels.items())))

    def labels(self, name: str) -> list[dict[str, str]]:
        return [dict(labels) for labels in self.values.get(name, {})]


@dataclass(frozen=True, slots=True)
class TopTopic:
    topic: str
    end: int | None
    rows_per_second: float | None
    bytes_per_second: float | None
    lag_rows: int | None
    freshness_seconds: float | None


@dataclass(frozen=True, slots=True)
class TopSubscription:
    topic: str
    subscription: str
    lag: int | None
    in_flight: int | None
    acks_per_second: float | None
    redeliveries: int | None
    consumers: int | None
    blocked: bool


@dataclass(frozen=True, slots=True)
class ServerFigures:
    ready: bool
    rows_per_second: float | None
    bytes_per_second: float | None
    ack_p50_ms: float | None
    ack_p99_ms: float | None
    sync_p99_ms: float | None
    disk_used_bytes: int | None
    disk_limit_bytes: int | None
    mover_alive: bool | None
    brokers_active: int | None
    brokers_gone: int | None
    leads: bool
    topics_owned: int | None
    topics_unserved: int | None
    load_variation: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """Rates and quantiles cover the time between two scrapes, and are None after only one."""

    server: ServerFigures
    topics: list[TopTopic]
    subscriptions: list[TopSubscription]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def parse(text: str, at_seconds: float) -> Scrape:
    values: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return Scrape(at_seconds, values)


def figures(before: Scrape | None, now: Scrape) -> Figures:
    """Sort the busiest topics first, then idle ones by lag; likewise subscriptions."""
    topics = [_topic(before, now, one["topic"]) for one in now.labels("frazil_topic_end_offset")]
    topics.sort(key=lambda one: (-(one.rows_per_second or 0), -(one.lag_rows or 0), one.topic))
    pairs = now.labels("frazil_subscription_in_flight_messages")
    subscriptions = [_subscription(before, now, one["topic"], one["subscription"]) for one in pairs]
    subscriptions.sort(key=lambda one: (-(one.lag or 0), one.topic, one.subscription))
    return Figures(_server(before, now), topics, subscriptions)


def _server(before: Scrape | None, now: Scrape) -> ServerFigures:
    alive = now.value("frazil_mover_alive")
    alive = now.value("frazil_pipeline_up") if alive is None else alive
    return ServerFigures(
        ready=now.value("frazil_ready") == 1,
        rows_per_second=rate(before, now, "frazil_log_rows_total"),
        bytes_per_second=rate(before, now, "frazil_log_bytes_total"),
        ack_p50_ms=_ms(quantile(before, now, "frazil_log_ack_seconds", 0.5)),
        ack_p99_ms=_ms(quantile(before, now, "frazil_log_ack_seconds", 0.99)),
        sync_p99_ms=_ms(quantile(before, now, "frazil_log_sync_seconds", 0.99)),
        disk_used_bytes=_whole(now.value("frazil_disk_used_bytes")),
        disk_limit_bytes=_whole(now.value("frazil_disk_limit_bytes")),
        mover_alive=None if alive is None else alive == 1,
        brokers_active=_whole(now.value("frazil_cluster_brokers", state="active")),
        brokers_gone=_whole(now.value("frazil_cluster_brokers", state="gone")),
        leads=now.value("frazil_cluster_leads") == 1,
        topics_owned=_whole(now.value("frazil_topics")),
        topics_unserved=_whole(now.value("frazil_cluster_topics_unserved")),
        load_variation=now.value("frazil_cluster_load_variation"),
    )


def _topic(before: Scrape | None, now: Scrape, name: str) -> TopTopic:
    return TopTopic(
        topic=name,
        end=_whole(now.value("frazil_topic_end_offset", topic=name)),
        rows_per_second=rate(before, now, "frazil_topic_end_offset", topic=name),
        bytes_per_second=rate(before, now, "frazil_topic_bytes", topic=name),
        lag_rows=_whole(now.value("frazil_table_lag_rows", topic=name)),
        freshness_seconds=now.value("frazil_table_freshness_seconds", topic=name),
    )


def _subscription(before: Scrape | None, now: Scrape, topic: str, name: str) -> TopSubscription:
    at = {"topic": topic, "subscription": name}
    return TopSubscription(
        topic=topic,
        subscription=name,
        lag=_whole(now.value("frazil_subscription_lag_messages", **at)),
        in_flight=_whole(now.value("frazil_subscription_in_flight_messages", **at)),
        acks_per_second=rate(before, now, "frazil_subscription_acks_total", **at),
        redeliveries=_whole(now.value("frazil_subscription_redeliveries_total", **at)),
        consumers=_whole(now.value("frazil_subscription_consumers", **at)),
        blocked=now.value("frazil_subscription_blocked", **at) == 1,
    )


def rate(before: Scrape | None, now: Scrape, name: str, **labels: str) -> float | None:
    """Rate per second; None if the counter decreased: the server restarted, or retention removed a segment."""
    old = None if before is None else before.value(name, **labels)
    new = now.value(name, **labels)
    if before is None or old is None or new is None or new < old or now.at_seconds <= before.at_seconds:
        return None
    return (new - old) / (now.at_seconds - before.at_seconds)


def quantile(before: Scrape | None, now: Scrape, name: str, share: float) -> float | None:
    """Quantile of a histogram between two scrapes, linear within a bucket as Prometheus computes it."""
    if before is None:
        return None
    old = before.values.get(f"{name}_bucket", {})
    new = now.values.get(f"{name}_bucket", {})
    bounds = sorted((float(dict(labels)["le"]), value - old.get(labels, 0)) for labels, value in new.items())
    total = bounds[-1][1] if bounds else 0
    if total <= 0 or any(count < 0 for _, count in bounds):
        return None
    wanted, low, below = share * total, 0.0, 0.0
    for bound, count in bounds:
        if count >= wanted:
            return low if math.isinf(bound) else low + (bound - low) * (wanted - below) / (count - below)
        low, below = bound, count
    raise AssertionError("the last bucket has all")


def _whole(value: float | None) -> int | None:
    return None if value is None or math.isnan(value) else int(value)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1_000
