"""Settings of single topics: which entry holds, and what is refused when the file is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from frazil.core.errors import InvalidSettings
from frazil.core.names import TopicName
from frazil.core.partitioning import parse_partitioning
from frazil.core.settings import load_settings, make_settings

FILE = """
writer:
  batch_size: 7
topics:
  /logs/*:
    batch_size: 1
  /logs/app:
    flush_interval_ms: 2
  /*/app:
    batch_size: 3
    enabled: false
  /l?gs/x-part-1:
    partitioning: []
"""


@pytest.mark.parametrize(
    ("topic", "key"),
    [
        ("/logs/app", "/logs/app"),
        ("/logs/app-part-12", "/logs/app"),
        ("/logs/other", "/logs/*"),
        ("/logs/x-part-1", "/logs/*"),
        ("/lags/x-part-1", "/l?gs/x-part-1"),
        ("/shop/app", "/*/app"),
        ("/shop/app-part-0", "/*/app"),
        ("/shop/application", ""),
    ],
)
def test_the_exact_name_wins_then_the_first_pattern_of_the_file(tmp_path: Path, topic: str, key: str) -> None:
    file = tmp_path / "frazil.yaml"
    file.write_text(FILE, encoding="utf-8")
    assert load_settings(file).of_topic(TopicName.parse(topic)).key == key


def test_a_partition_named_by_itself_wins_over_its_topic() -> None:
    settings = make_settings({"topics": {"/a/b": {"batch_size": 1}, "/a/b-part-1": {"batch_size": 2}}})
    found = [settings.of_topic(TopicName.parse(f"/a/b-part-{number}")).writer.batch_size for number in (0, 1)]
    assert found == [1, 2]


def test_what_an_entry_does_not_say_is_as_for_all() -> None:
    values = {"writer": {"batch_size": 7, "flush_interval_ms": 8}, "topics": {"/a/*": {"flush_interval_ms": 9}}}
    writer = make_settings(values).of_topic(TopicName.parse("/a/b")).writer
    assert (writer.batch_size, writer.flush_interval_ms, writer.max_memory_bytes) == (7, 9, 128 * 2**20)


@pytest.mark.parametrize(
    ("topics", "key", "advice"),
    [
        ({"/a/b": {"batch_sise": 1}}, "topics./a/b.batch_sise", "did you mean batch_size?"),
        ({"/a/b": {"batch_size": 0}}, "topics./a/b.batch_size", "greater than 0"),
        ({"/a/b": {"max_memory_bytes": 1}}, "topics./a/b.max_memory_bytes", "4194304"),
        ({"/a/b": {"sql": " "}}, "topics./a/b.sql", "SELECT or WITH"),
        ({"/a/b": {"enabled": "perhaps"}}, "topics./a/b.enabled", "valid boolean"),
        ({"/a/b": {"partitioning": "day(a)"}}, "topics./a/b.partitioning", "must be a list"),
        ({"/a/b": {"partitioning": ["days(a)"]}}, "topics./a/b.partitioning", "there is no days"),
        ({"/a/b": {"partitioning": ["bucket(a)"]}}, "topics./a/b.partitioning", "needs a width"),
        ({"/a/b": {"partitioning": ["day[3](a)"]}}, "topics./a/b.partitioning", "takes no width"),
        ({"/a/b": {"partitioning": ["day(a"]}}, "topics./a/b.partitioning", "neither a column nor"),
        ({"/a/b": {"partitioning": ["bucket[2](a)", "bucket[4](a)"]}}, "topics./a/b.partitioning", "twice"),
        ({"a/b": {}}, "topics.a/b", "must be a topic like"),
        ({"/a": {}}, "topics./a", "must be a topic like"),
        ({"/a/b": 5}, "topics./a/b", "a section with keys of its own"),
        ([], "topics", "a section with keys of its own"),
    ],
)
def test_a_message_names_the_key_and_what_to_do(topics: Any, key: str, advice: str) -> None:
    with pytest.raises(InvalidSettings) as error:
        make_settings({"topics": topics}, "frazil.yaml")
    assert error.value.message.startswith(f"frazil.yaml: {key}: ")
    assert advice in error.value.message


def test_topics_cannot_be_given_by_the_environment() -> None:
    with pytest.raises(InvalidSettings, match="FRAZIL_TOPICS__A: topics can be given in a file only"):
        make_settings({}, environment={"FRAZIL_TOPICS__A": "1"})


def test_partitioning_in_words() -> None:
    fields = parse_partitioning(("day(_publish_time)", " bucket[16]( _key ) ", "user", "identity(a.b)"))
    assert [str(field) for field in fields] == ["day(_publish_time)", "bucket[16](_key)", "user", "a.b"]
    assert [field.name for field in fields] == ["_publish_time_day", "_key_bucket", "user", "a.b"]
