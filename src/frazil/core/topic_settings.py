"""Settings of single topics, found by a topic's name or by a pattern of names."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from frazil.core.lake_settings import MIB, Positive, WriterSettings
from frazil.core.names import TopicName
from frazil.core.partitioning import Partitioning, parse_partitioning

_PATTERN = re.compile(r"/[A-Za-z0-9_.*?-]{1,128}/[A-Za-z0-9_.*?-]{1,128}", re.ASCII)


def _check_pattern(text: str) -> str:
    if not _PATTERN.fullmatch(text):
        raise ValueError("must be a topic like /default/orders or a pattern like /logs/*")
    return text


class TopicSettings(BaseModel):
    """What differs for a topic; what is unset is as in `writer`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = Field(True, description="whether the topic is moved to a table")
    partitioning: tuple[str, ...] | None = Field(
        None, description="how the table is partitioned when it is made; [] for not at all"
    )
    batch_size: Positive | None = Field(None, description="rows that wait")
    flush_interval_ms: Positive | None = Field(None, description="age of the oldest row that waits")
    max_memory_bytes: int | None = Field(None, ge=4 * MIB, description="bytes that wait, and memory of one task")
    sql: str | None = Field(None, description="a query over the rows, FROM topic; the table holds its result")
    freshness_objective_ms: Positive | None = Field(
        None, description="rows are to be in the table at this age; if one is not, `/health/ready` says so"
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
        """The writer's settings, with what is given here above them."""
        given = {name: value for name in WriterSettings.model_fields if (value := getattr(self, name)) is not None}
        return writer.model_copy(update=given)


TopicTable = dict[Annotated[str, AfterValidator(_check_pattern)], TopicSettings]
"""Settings by a topic's name or a pattern, in the file's order."""


@dataclass(frozen=True, slots=True)
class TopicRules:
    """What holds for one topic, and under which key of `topics` it was said; an empty key if under none."""

    key: str
    enabled: bool
    partitioning: Partitioning | None
    writer: WriterSettings
    sql: str | None
    freshness_objective_ms: int | None = None

    def setting(self, name: str) -> str:
        return f"topics.{self.key}.{name}"


def topic_rules(topics: Mapping[str, TopicSettings], writer: WriterSettings, topic: TopicName) -> TopicRules:
    """The topic's own entry, else that of the topic it is a partition of, else the first pattern that fits either."""
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
    """Part by part: a `*` never reaches over the slash."""
    _, namespace, topic = pattern.split("/")
    return fnmatch.fnmatchcase(name.namespace, namespace) and fnmatch.fnmatchcase(name.topic, topic)
