"""The log's counters as Prometheus families. Topics have their own labels up to a limit; the rest are summed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from frazil.core.principal import ANONYMOUS
from frazil.doors.metrics.labels import Rows, bounded
from frazil.node.health.stats import NodeStats
from frazil.node.node import Node
from frazil.node.objects.figures import ObjectStats
from frazil.node.types.log import Histogram, LogMetrics, TopicStats

_TOPIC_GAUGES = (
    ("frazil_topic_messages", "Messages in the log of a topic."),
    ("frazil_topic_bytes", "Bytes of its segments that hold frames."),
    ("frazil_topic_reserved_bytes", "Bytes of its segment files."),
    ("frazil_topic_segments", "Segment files."),
    ("frazil_topic_end_offset", "The next offset."),
    ("frazil_topic_unsynced_messages", "Messages written, but not yet on the device."),
    ("frazil_topic_queued_bytes", "Bytes that wait for the disk."),
    ("frazil_topic_failed", "1 if the log failed and takes no more messages."),
)


_OBJECT_GAUGES = (
    ("frazil_topic_objects", "Objects in the store."),
    ("frazil_topic_objects_bytes", "Bytes of them."),
    ("frazil_topic_upload_lag_messages", "Messages that are durable in the log and in no object."),
)


class LogCollector(Collector):
    """Reads the plain numbers of a Node when it is asked; nothing is counted twice."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._health = node.health(ANONYMOUS)
        self._movers = node.movers(ANONYMOUS)

    def collect(self) -> Iterator[Metric]:
        stats = self._node.stats(ANONYMOUS)
        yield from _log(stats.metrics)
        yield from self._folder(stats)
        yield from topic_families(stats.topics)
        yield held_back_family(stats.topics)
        if stats.objects is not None:
            yield from object_families(stats.objects)

    def _folder(self, stats: NodeStats) -> Iterator[Metric]:
        budget, cache = stats.budget, stats.cache
        yield GaugeMetricFamily("frazil_disk_used_bytes", "Bytes of all segment files.", value=budget.used_bytes)
        if budget.limit_bytes is not None:
            yield GaugeMetricFamily("frazil_disk_limit_bytes", "The disk budget.", value=budget.limit_bytes)
        yield GaugeMetricFamily("frazil_cache_used_bytes", "Bytes in the replay cache.", value=cache.used_bytes)
        yield GaugeMetricFamily("frazil_cache_limit_bytes", "Bound of the replay cache.", value=cache.capacity_bytes)
        yield GaugeMetricFamily("frazil_topics", "Topics in the folder.", value=stats.topics_total)
        yield GaugeMetricFamily("frazil_topics_opened", "Topics that are open.", value=len(stats.topics))
        broken = len(self._health.opening.problems())
        yield GaugeMetricFamily("frazil_topics_broken", "Topics that are corrupt or have failed.", value=broken)
        ready = int(self._health.ready)
        yield GaugeMetricFamily("frazil_ready", "1 if all topics are open, well and fresh.", value=ready)
        up = int(self._movers.child is not None and self._movers.child.up)
        yield GaugeMetricFamily("frazil_pipeline_up", "1 if the mover runs.", value=up)


def _log(metrics: LogMetrics) -> Iterator[Metric]:
    yield CounterMetricFamily("frazil_log_rows", "Rows written.", value=metrics.rows)
    yield CounterMetricFamily("frazil_log_bytes", "Bytes of frames written.", value=metrics.bytes)
    yield CounterMetricFamily("frazil_log_failed_rows", "Rows whose write failed.", value=metrics.failed_rows)
    yield CounterMetricFamily("frazil_log_refused", "Calls refused: too much waited.", value=metrics.refused)
    reads = CounterMetricFamily("frazil_log_reads", "Batches read, by where from.", labels=["source"])
    reads.add_metric(["cache"], metrics.reads_cached)
    reads.add_metric(["files"], metrics.reads_from_files)
    reads.add_metric(["objects"], metrics.reads_from_objects)
    reads.add_metric(["table"], metrics.reads_from_tables)
    yield reads
    yield histogram("frazil_log_group_rows", "Rows of one commit.", metrics.group_rows)
    text = "From queueing to the answer, for the first of each commit."
    yield histogram("frazil_log_ack_seconds", text, metrics.ack_seconds)
    yield histogram("frazil_log_sync_seconds", "Time of one fdatasync.", metrics.sync_seconds)


def histogram(name: str, text: str, source: Histogram) -> HistogramMetricFamily:
    counts, total = source.read()
    buckets, below = [], 0
    for bound, count in zip([*map(str, source.bounds), "+Inf"], counts, strict=True):
        below += count
        buckets.append((bound, float(below)))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=total)


def topic_families(stats: Sequence[TopicStats]) -> Iterable[GaugeMetricFamily]:
    families = [GaugeMetricFamily(name, text, labels=["topic"]) for name, text in _TOPIC_GAUGES]
    for labels, values in bounded([((one.topic,), _values(one)) for one in stats]):
        for family, value in zip(families, values, strict=True):
            family.add_metric(labels, value)
    return families


def held_back_family(stats: Sequence[TopicStats]) -> GaugeMetricFamily:
    text = "How long a guard has held back rows that are past their retention."
    family = GaugeMetricFamily("frazil_topic_held_back_seconds", text, labels=["topic", "guard"])
    rows: Rows = [
        ((one.topic, one.held_back.guard), [max(0, one.tiers.log.learnt_us - one.held_back.since_us) / 1e6])
        for one in stats
        if one.held_back is not None and one.tiers.log is not None and one.tiers.log.learnt_us is not None
    ]
    for labels, (seconds,) in bounded(rows, [max]):
        family.add_metric(labels, seconds)
    return family


def object_families(stats: ObjectStats) -> Iterator[Metric]:
    yield CounterMetricFamily("frazil_objects_uploaded", "Objects uploaded.", value=stats.uploaded)
    yield CounterMetricFamily("frazil_objects_uploaded_bytes", "Bytes of them.", value=stats.uploaded_bytes)
    yield CounterMetricFamily("frazil_objects_failures", "Failed attempts to upload.", value=stats.failures)
    yield GaugeMetricFamily("frazil_objects_deletions", "Deleted logs with objects.", value=stats.waiting_deletions)
    families = [GaugeMetricFamily(name, text, labels=["topic"]) for name, text in _OBJECT_GAUGES]
    rows: Rows = [((one.topic,), [one.objects, one.bytes, one.lag_rows]) for one in stats.topics]
    for labels, values in bounded(rows):
        for family, value in zip(families, values, strict=True):
            family.add_metric(labels, value)
    yield from families


def _values(one: TopicStats) -> list[int]:
    return [
        one.messages,
        one.bytes,
        one.reserved_bytes,
        one.segments,
        one.end,
        one.unsynced,
        one.queued_bytes,
        int(one.failed is not None),
    ]
