"""What a user may tell the Spark source, checked when it is made. The names are those of Spark's Kafka source."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frazil.core.errors import InvalidInput
from frazil.core.names import TopicName
from frazil.core.settings import Settings, resolve_settings
from frazil.pipeline.owner import check_lake_is_named

EARLIEST, LATEST = -2, -1

NAMES = (
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "data",
    "config",
    "owner",
)
_WORDS = {"earliest": EARLIEST, "latest": LATEST}


@dataclass(frozen=True, slots=True)
class Bound:
    """Where to begin or to end: one offset for all, and others for the partitions that are named."""

    rest: int
    named: Mapping[tuple[str, int], int]

    def of(self, topic: str, partition: int) -> int:
        return self.named.get((topic, partition), self.rest)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    topics: tuple[TopicName, ...]
    pattern: re.Pattern[str] | None
    starting: Bound | None
    ending: Bound | None
    starting_time_us: int | None
    offsets_per_trigger_max: int | None
    partitions_min: int | None
    fail_on_data_loss: bool
    data: Path | None
    config: Path | None
    owner: str | None

    def wants(self, topic: TopicName) -> bool:
        """A name that is subscribed to stands for all its partitions."""
        base, _ = topic.partition_of()
        if self.pattern is not None:
            return self.pattern.fullmatch(str(base)) is not None
        return topic in self.topics or base in self.topics

    def settings(self) -> Settings:
        """Where the log and the lake are. An owner elsewhere does not say where its tables are."""
        found = resolve_settings(self.data, self.config)
        if self.owner is not None and self.data is None and self.config is None:
            check_lake_is_named(found)
        return found


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """The options, or `InvalidInput` that names the one that is wrong. Case does not matter, as ever in Spark."""
    known = {name.lower(): name for name in NAMES}
    unknown = sorted(name for name in given if name.lower() not in known)
    if unknown:
        raise _wrong(unknown[0], f"there is no such option; there are {', '.join(NAMES)}")
    values = {known[name.lower()]: value.strip() for name, value in given.items()}
    if ("subscribe" in values) == ("subscribePattern" in values):
        raise _wrong("subscribe", "give either it, with topics like /shop/orders, or subscribePattern")
    if "startingOffsets" in values and "startingTimestamp" in values:
        raise _wrong("startingTimestamp", "give either it or startingOffsets, not both")
    return SourceOptions(
        topics=_topics(values.get("subscribe")),
        pattern=_pattern(values.get("subscribePattern")),
        starting=_bound("startingOffsets", values),
        ending=_bound("endingOffsets", values),
        starting_time_us=_time_us(values),
        offsets_per_trigger_max=_positive("maxOffsetsPerTrigger", values),
        partitions_min=_positive("minPartitions", values),
        fail_on_data_loss=_truth("failOnDataLoss", values, True),
        data=_path("data", values),
        config=_path("config", values),
        owner=_owner(values.get("owner")),
    )


def _topics(text: str | None) -> tuple[TopicName, ...]:
    if text is None:
        return ()
    names = [word.strip() for word in text.split(",") if word.strip()]
    if not names:
        raise _wrong("subscribe", "name a topic, as in /shop/orders, or several with commas between them")
    return tuple(TopicName.parse(name) for name in names)


def _pattern(text: str | None) -> re.Pattern[str] | None:
    if text is None:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise _wrong("subscribePattern", f"{text!r} is not a regular expression: {error}") from None


def _bound(name: str, values: Mapping[str, str]) -> Bound | None:
    text = values.get(name)
    if text is None:
        return None
    if text.lower() in _WORDS:
        return Bound(_WORDS[text.lower()], {})
    try:
        parsed = json.loads(text)
    except ValueError:
        raise _wrong(name, f"{text!r} is neither earliest, latest, a number nor JSON") from None
    if isinstance(parsed, Mapping):
        rest = EARLIEST if name == "startingOffsets" else LATEST
        return Bound(rest, dict(_named(name, parsed)))
    return Bound(_offset(name, parsed), {})


def _named(name: str, parsed: Mapping[str, Any]) -> list[tuple[tuple[str, int], int]]:
    found = []
    for topic, partitions in parsed.items():
        if not isinstance(partitions, Mapping):
            raise _wrong(name, f'{topic} needs its partitions, as in {{"{topic}": {{"0": 17}}}}')
        for number, offset in partitions.items():
            if not number.isdecimal():
                raise _wrong(name, f"{number!r} is no number of a partition of {topic}")
            found.append(((str(TopicName.parse(topic)), int(number)), _offset(name, offset)))
    return found


def _offset(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < EARLIEST:
        raise _wrong(name, f"{value!r} is no offset: use 0 or more, -2 for the earliest, -1 for the latest")
    return value


def _time_us(values: Mapping[str, str]) -> int | None:
    text = values.get("startingTimestamp")
    if text is None:
        return None
    if not text.isdecimal():
        raise _wrong("startingTimestamp", f"{text!r} is not a number of milliseconds since 1970")
    return int(text) * 1_000


def _positive(name: str, values: Mapping[str, str]) -> int | None:
    text = values.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) == 0:
        raise _wrong(name, f"{text!r} is not a number above 0")
    return int(text)


def _truth(name: str, values: Mapping[str, str], default: bool) -> bool:
    text = values.get(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise _wrong(name, f"{text!r} is neither true nor false")
    return text.lower() == "true"


def _path(name: str, values: Mapping[str, str]) -> Path | None:
    text = values.get(name)
    if text is None:
        return None
    if not text:
        raise _wrong(name, "name a path")
    return Path(text).absolute()


def _owner(text: str | None) -> str | None:
    if text is not None and not re.fullmatch(r"grpc(\+\w+)?://.+:\d+", text):
        raise _wrong("owner", f"{text!r} is no address of an owner: use grpc://host:port")
    return text


def _wrong(name: str, why: str) -> InvalidInput:
    return InvalidInput(f"option {name}: {why}", option=name)
