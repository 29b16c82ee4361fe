"""Metrics: families named frazil_, histograms that add up, and a bound on labels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

import frazil
from frazil.core.principal import LOCAL
from frazil.doors.metrics.collectors import make_registry
from frazil.doors.metrics.labels import LABELS_MAX, bounded
from frazil.doors.metrics.log import topic_families
from frazil.log.storage import Storage
from frazil.node.node import Node


@pytest.fixture
def storage() -> Iterator[Storage]:
    with frazil.open(None) as storage:
        yield storage


def samples(storage: Storage) -> dict[str, float]:
    text = generate_latest(make_registry(Node(storage))).decode()
    return {
        sample.name + "".join(f"|{value}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_counters_and_histograms_tell_what_was_published(storage: Storage) -> None:
    topic = storage.topic("/default/orders")
    topic.publish_many([b"x"] * 5)
    topic.publish("y")
    list(topic.read())
    found = samples(storage)
    assert found["frazil_log_rows_total"] == 6
    assert found["frazil_log_group_rows_count"] == 2
    assert found["frazil_log_group_rows_sum"] == 6
    assert found["frazil_log_group_rows_bucket|1.0"] == 1
    assert found["frazil_log_group_rows_bucket|16.0"] == 2
    assert found["frazil_log_group_rows_bucket|+Inf"] == 2
    assert found["frazil_log_sync_seconds_count"] == 2
    assert found["frazil_log_ack_seconds_count"] == 2
    assert found["frazil_log_ack_seconds_sum"] >= found["frazil_log_sync_seconds_sum"] > 0
    assert found["frazil_log_reads_total|cache"] == 2
    assert found["frazil_topic_end_offset|/default/orders"] == 6


def test_a_storage_without_a_budget_has_no_limit_to_show(storage: Storage) -> None:
    assert "frazil_disk_limit_bytes" not in samples(storage)


def test_topics_past_the_bound_are_summed_as_other(storage: Storage) -> None:
    for number in range(LABELS_MAX + 3):
        storage.topic(f"/default/t{number:04d}").publish("x")
    stats = [topic.stats() for topic in storage.opened_topics()]
    messages = next(family for family in topic_families(stats) if family.name == "frazil_topic_messages")
    labels = {sample.labels["topic"]: sample.value for sample in messages.samples}
    assert len(labels) == LABELS_MAX + 1
    assert labels["other"] == 3
    assert labels["/default/t0000"] == 1


def test_it_is_ready_once_every_topic_was_opened(storage: Storage) -> None:
    storage.topic("/default/a").publish("x")
    node = Node(storage)
    registry, opening = make_registry(node), node.health(LOCAL).opening
    assert registry.get_sample_value("frazil_ready") == 0
    opening.start()
    opening.wait()
    assert (opening.opened, opening.problems()) == (1, [])
    assert registry.get_sample_value("frazil_ready") == 1


def test_what_is_past_the_bound_is_joined_column_by_column() -> None:
    rows = [((f"/a/t{number:04d}", "s"), [1.0, float(number)]) for number in range(LABELS_MAX + 2)]
    found = bounded(rows, [sum, max])
    assert len(found) == LABELS_MAX + 1
    assert found[-1] == (("other", "other"), [2.0, LABELS_MAX + 1.0])
    assert bounded(rows[:LABELS_MAX]) == rows[:LABELS_MAX]


def test_calls_that_are_refused_are_counted() -> None:
    small = frazil.WalSettings(message_bytes_max=100, batch_bytes_max=100, queue_bytes_max=100)
    with frazil.open(frazil.Settings(data=None, wal=small)) as storage:
        log = storage.topic("/default/orders").log
        with pytest.raises(frazil.Overloaded):
            log.append_message((b"x", None, None, None), 101)
        assert samples(storage)["frazil_log_refused_total"] == 1


def test_reads_are_told_by_the_tier_they_came_from(tmp_path: Path) -> None:
    settings = frazil.Settings(data=tmp_path, wal=frazil.WalSettings(cache_capacity=0))
    with frazil.open(settings) as storage:
        topic = storage.topic("/default/orders")
        topic.publish("x")
        list(topic.read())
        found = samples(storage)
        assert [found[f"frazil_log_reads_total|{tier}"] for tier in ("cache", "files", "table")] == [0, 1, 0]
