"""The broker's counters as Prometheus families."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from frazil.core.principal import ANONYMOUS
from frazil.doors.metrics.labels import bounded
from frazil.node.node import Node
from frazil.node.types.broker import SubscriptionFigures

_GAUGES = (
    ("frazil_subscription_lag_messages", "Messages from the cursor to the end of the topic."),
    ("frazil_subscription_in_flight_messages", "Messages that wait for an answer, or to be sent again."),
    ("frazil_subscription_consumers", "Consumers that are connected."),
    ("frazil_subscription_blocked", "1 if it waits for a message that nobody acknowledges."),
)
_COUNTERS = (
    ("frazil_subscription_deliveries", "Messages sent to consumers, again or for the first time."),
    ("frazil_subscription_redeliveries", "Messages sent again."),
    ("frazil_subscription_acks", "Messages acknowledged."),
    ("frazil_subscription_nacks", "Messages that a consumer refused."),
    ("frazil_subscription_timeouts", "Messages whose acknowledgement took too long."),
    ("frazil_subscription_dead_letters", "Messages given up, and published to the dead letter topic."),
    ("frazil_subscription_dead_letters_failed", "Attempts to publish a dead letter that failed: the message is kept."),
    ("frazil_subscription_dropped", "Messages given up, or of a topic without a log and not taken."),
)


class BrokerCollector(Collector):
    """Gets the broker for each scrape: it opens after the first request was answered."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        broker = self._node.broker_stats(ANONYMOUS)
        if broker is None:
            return
        counts, figures = broker.counts, broker.subscriptions
        yield CounterMetricFamily("frazil_broker_sends", "Messages that producers sent.", value=counts.sends)
        yield CounterMetricFamily("frazil_broker_sent_bytes", "Bytes of their payloads.", value=counts.sent_bytes)
        refused = CounterMetricFamily("frazil_broker_refused", "Calls refused, by the error's code.", labels=["code"])
        for code, count in sorted(counts.refused.copy().items()):
            refused.add_metric([code], count)
        yield refused
        yield GaugeMetricFamily("frazil_broker_producers", "Producers known.", value=broker.producers)
        connected = sum(one.connected for one in figures)
        yield GaugeMetricFamily("frazil_broker_consumers", "Consumers that are connected.", value=connected)
        yield GaugeMetricFamily("frazil_broker_subscriptions", "Subscriptions.", value=len(figures))
        yield from _by_subscription(figures)


def _by_subscription(figures: list[SubscriptionFigures]) -> list[Metric]:
    labels = ["topic", "subscription"]
    families: list[GaugeMetricFamily | CounterMetricFamily] = [
        *(GaugeMetricFamily(name, text, labels=labels) for name, text in _GAUGES),
        *(CounterMetricFamily(name, text, labels=labels) for name, text in _COUNTERS),
    ]
    for names, values in bounded([((one.topic, one.subscription), _values(one)) for one in figures]):
        for family, value in zip(families, values, strict=True):
            family.add_metric(names, value)
    return list(families)


def _values(one: SubscriptionFigures) -> list[float]:
    counts = one.counts
    return [
        one.lag,
        one.in_flight,
        one.connected,
        one.blocked,
        counts.deliveries,
        counts.redeliveries,
        counts.acks,
        counts.nacks,
        counts.timeouts,
        counts.dead_letters,
        counts.letters_failed,
        counts.dropped,
    ]
