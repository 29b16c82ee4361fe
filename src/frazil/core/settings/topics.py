"""Settings of single topics, matched by name or by pattern."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, Field, field_validator, model_validator

from frazil.core.names import TopicName
from frazil.core.partitioning import Partitioning, parse_partitioning
from frazil.core.settings.group import SettingsGroup
from frazil.core.settings.lake import MIB, Positive, WriterSettings

_PATTERN = re.compile(r"/[A-Za-z0-9_.*?-]{1,128}/[A-Za-z0-9_.*?-]{1,128}", re.ASCII)


def _check_pattern(text: str) -> str:
    if not _PATTERN.fullmatch(text):
        raise ValueError("must be a topic like /default/orders or a pattern like /logs/*")
    return text


class TopicSettings(SettingsGroup):
    """What differs for a topic; what is unset is as in `writer`."""

    enabled: bool = Field(True, description="whether the topic is moved to a table")
    partitioning: tuple[str, ...] | None = Field(None, description="partitioning of a new table; [] for none")
    batch_size: Positive | None = Field(None, description="move after this many rows wait")
    flush_interval_ms: Positive | None = Field(None, description="move when the oldest waiting row has this age")
    max_memory_bytes: int | None = Field(
        None, ge=4 * MIB, description="move after this many bytes wait; also the memory of one task"
    )
    sql: str | None = Field(None, description="an SQL query over the rows, FROM topic; the table holds its result")
    freshness_objective_ms: Positive | None = Field(
        None, description="rows must be in the table within this time; otherwise `/health/ready` reports it"
    )

    @field_validator("partitioning", mode="before")
    @classmethod
    def _is_a_list(cls, value: Any) -> Any:
        if value is not None and not isinstance(value, list | tuple):
            raise ValueError("must be a list, such as [day(_publish_time)]")
        return value

    @field_validator("partitioning")
    @classmethod
    def _can_be_read(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None:
            parse_partitioning(value)
        return value

    @field_validator("sql")
    @classmethod
    def _says_something(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("must be a SELECT or WITH query; leave it out to keep the rows as they are")
        return value

    @model_validator(mode="after")
    def _has_a_table_to_be_fresh(self) -> TopicSettings:
        if self.freshness_objective_ms is not None and not self.enabled:
            raise ValueError("freshness_objective_ms is for topics that are moved: leave it out, or enabled: true")
        return self

    def writer_over(self, writer: WriterSettings) -> WriterSettings:
        """Return the writer settings, with this topic's settings above them."""
        given = {name: value for name in WriterSettings.model_fields if (value := getattr(self, name)) is not None}
        return writer.model_copy(update=given)


TopicTable = dict[Annotated[str, AfterValidator(_check_pattern)], TopicSettings]
"""Settings by topic name or pattern, in the file's order."""


@dataclass(frozen=True, slots=True)
class TopicRules:
    """The effective settings of one topic, and the matching key of `topics`; empty if none matches."""

    key: str
    enabled: bool
    partitioning: Partitioning | None
    writer: WriterSettings
    sql: str | None
    freshness_objective_ms: int | None = None

    def setting(self, name: str) -> str:
        return f"topics.{self.key}.{name}"


def topic_rules(topics: Mapping[str, TopicSettings], writer: WriterSettings, topic: TopicName) -> TopicRules:
    """Select the topic's own entry, else that of its base topic, else the first pattern that matches either."""
    key = _key(topics, topic)
    own = topics[key] if key else TopicSettings()
    partitioning = None
    if own.partitioning is not None:
        partitioning = Partitioning(f"topics.{key}.partitioning", parse_partitioning(own.partitioning))
    return TopicRules(key, own.enabled, partitioning, own.writer_over(writer), own.sql, own.freshness_objective_ms)


def _key(topics: Mapping[str, TopicSettings], topic: TopicName) -> str:
    names = (topic, topic.partition_of()[0])
    for name in names:
        if str(name) in topics:
            return str(name)
    for key in topics:
        if any(_fits(name, key) for name in names):
            return key
    return ""


def _fits(name: TopicName, pattern: str) -> bool:
    """Match part by part: a `*` never matches a slash."""
    _, namespace, topic = pattern.split("/")
    return fnmatch.fnmatchcase(name.namespace, namespace) and fnmatch.fnmatchcase(name.topic, topic)
