"""Options of the Spark source, validated on construction. The names are those of Spark's Kafka source."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frazil.core.errors import InvalidInput
from frazil.core.names import TopicName
from frazil.core.settings import Settings, resolve_settings
from frazil.core.settings.security import ClientSettings
from frazil.node.owner import check_lake_is_named

EARLIEST, LATEST = -2, -1
TIME_MS_MAX = 253_402_300_799_999
"""The end of the year 9999."""

NAMES = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingTimestamp",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "includeHeaders",
    "failOnDataLoss",
    "data",
    "config",
    "owner",
    "token",
    "tokenFile",
    "ca",
    "certificate",
    "key",
)
TRIGGER_DELAY_MS = 15 * 60 * 1_000
"""The default wait of Kafka's source for `minOffsetsPerTrigger`."""

_WORDS = {"earliest": EARLIEST, "latest": LATEST}
_UNITS_MS = {"us": 0.001, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "": 1}


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first row that was appended then or later; the end if there is none."""

    time_us: int


Position = int | AtTime


@dataclass(frozen=True, slots=True)
class Bound:
    """Where to begin or to end: one position for all, and others for the named partitions."""

    rest: Position
    named: Mapping[tuple[str, int], Position] = field(default_factory=dict)

    def of(self, topic: str, partition: int) -> Position:
        return self.named.get((topic, partition), self.rest)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    topics: tuple[TopicName, ...]
    pattern: re.Pattern[str] | None
    assigned: frozenset[tuple[str, int]]
    starting: Bound | None
    ending: Bound | None
    offsets_per_trigger_max: int | None
    offsets_per_trigger_min: int | None
    trigger_delay_ms_max: int
    partitions_min: int | None
    include_headers: bool
    fail_on_data_loss: bool
    data: Path | None
    config: Path | None
    owner: str | None
    client: ClientSettings | None
    """How to call the owner, if the options say so."""
    of_batches: str | None
    """The first given option that only a batch has; likewise `of_streams`."""
    of_streams: str | None

    def wants(self, topic: TopicName) -> bool:
        """A subscribed name includes all its partitions."""
        base, number = topic.partition_of()
        if self.assigned:
            return (str(base), number) in self.assigned
        if self.pattern is not None:
            return self.pattern.fullmatch(str(base)) is not None
        return topic in self.topics or base in self.topics

    def settings(self) -> Settings:
        """Return the location of the log and the lake. A remote owner does not say where its tables are."""
        found = resolve_settings(self.data, self.config)
        if self.owner is not None and self.data is None and self.config is None:
            check_lake_is_named(found)
        return found if self.client is None else found.model_copy(update={"client": self.client})


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Parse the options, or raise `InvalidInput` that names the wrong one. Case-insensitive, as usual in Spark."""
    known = {name.lower(): name for name in NAMES}
    unknown = sorted(name for name in given if name.lower() not in known)
    if unknown:
        raise _wrong(unknown[0], f"there is no such option; there are {', '.join(NAMES)}")
    values = {known[name.lower()]: value.strip() for name, value in given.items()}
    _one_of(values, ("subscribe", "subscribePattern", "assign"), needed=True)
    _one_of(values, _STARTING)
    _one_of(values, _ENDING)
    least, most = _positive("minOffsetsPerTrigger", values), _positive("maxOffsetsPerTrigger", values)
    if least is not None and most is not None and least > most:
        raise _wrong("minOffsetsPerTrigger", f"{least} is more than maxOffsetsPerTrigger, {most}")
    if "maxTriggerDelay" in values and least is None:
        raise _wrong("maxTriggerDelay", "it goes with minOffsetsPerTrigger")
    return SourceOptions(
        topics=_topics(values.get("subscribe")),
        pattern=_pattern(values.get("subscribePattern")),
        assigned=_assigned(values.get("assign")),
        starting=_position(_STARTING, values),
        ending=_position(_ENDING, values),
        offsets_per_trigger_max=most,
        offsets_per_trigger_min=least,
        trigger_delay_ms_max=_duration_ms("maxTriggerDelay", values, TRIGGER_DELAY_MS),
        partitions_min=_positive("minPartitions", values),
        include_headers=_truth("includeHeaders", values, True),
        fail_on_data_loss=_truth("failOnDataLoss", values, True),
        data=_path("data", values),
        config=_path("config", values),
        owner=_owner(values.get("owner")),
        client=_client(values),
        of_batches=next((name for name in _ENDING if name in values), None),
        of_streams=next((name for name in _OF_STREAMS if name in values), None),
    )


_STARTING = ("startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp")
_ENDING = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")
_OF_STREAMS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")


def _one_of(values: Mapping[str, str], names: Sequence[str], *, needed: bool = False) -> None:
    given = [name for name in names if name in values]
    if len(given) > 1:
        raise _wrong(given[1], f"give either it or {given[0]}, not both")
    if needed and not given:
        raise _wrong(names[0], f"give it, with topics like /shop/orders, or {' or '.join(names[1:])}")


def _position(names: Sequence[str], values: Mapping[str, str]) -> Bound | None:
    by_offset, by_times, by_time = names
    if by_time in values:
        return Bound(_time(by_time, values[by_time]))
    if by_times not in values:
        return _bound(by_offset, values)
    rest = EARLIEST if by_offset == "startingOffsets" else LATEST
    return Bound(rest, dict(_named(by_times, _object(by_times, values[by_times]), _time)))


def _assigned(text: str | None) -> frozenset[tuple[str, int]]:
    if text is None:
        return frozenset()
    found = set()
    for topic, numbers in _object("assign", text).items():
        base, name = TopicName.parse(topic), f'as in {{"{topic}": [0, 1]}}'
        if base.partition_of()[0] != base:
            raise _wrong("assign", f"{topic} is a partition itself; name its topic, {name}")
        if not isinstance(numbers, list) or not numbers:
            raise _wrong("assign", f"{topic} needs the numbers of its partitions, {name}")
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise _wrong("assign", f"{number!r} is no number of a partition of {topic}")
            found.add((str(base), number))
    if not found:
        raise _wrong("assign", 'name a partition, as in {"/shop/orders": [0]}')
    return frozenset(found)


def _object(name: str, text: str) -> Mapping[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, Mapping):
        raise _wrong(name, f"{text!r} is no JSON of topics and their partitions")
    return parsed


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
        return Bound(_WORDS[text.lower()])
    try:
        parsed = json.loads(text)
    except ValueError:
        raise _wrong(name, f"{text!r} is neither earliest, latest, a number nor JSON") from None
    if isinstance(parsed, Mapping):
        rest = EARLIEST if name == "startingOffsets" else LATEST
        return Bound(rest, dict(_named(name, parsed, _offset)))
    return Bound(_offset(name, parsed))


def _named(
    name: str, parsed: Mapping[str, Any], position: Callable[[str, Any], Position]
) -> list[tuple[tuple[str, int], Position]]:
    found = []
    for topic, partitions in parsed.items():
        if not isinstance(partitions, Mapping):
            raise _wrong(name, f'{topic} needs its partitions, as in {{"{topic}": {{"0": 17}}}}')
        for number, offset in partitions.items():
            if not number.isdecimal():
                raise _wrong(name, f"{number!r} is no number of a partition of {topic}")
            found.append(((str(TopicName.parse(topic)), int(number)), position(name, offset)))
    return found


def _offset(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < EARLIEST:
        raise _wrong(name, f"{value!r} is no offset: use 0 or more, -2 for the earliest, -1 for the latest")
    return value


def _time(name: str, value: Any) -> AtTime:
    """Milliseconds since 1970, as a number or as its text."""
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= TIME_MS_MAX:
        raise _wrong(name, f"{value!r} is not a number of milliseconds since 1970")
    return AtTime(value * 1_000)


def _duration_ms(name: str, values: Mapping[str, str], default: int) -> int:
    """A duration in Spark's form: `15m`, `30s`, or a number of milliseconds."""
    text = values.get(name)
    if text is None:
        return default
    found = re.fullmatch(r"(\d{1,12})\s*([a-z]*)", text.lower())
    if found is None or found[2] not in _UNITS_MS:
        raise _wrong(name, f"{text!r} is no duration: use 30s, 15m or a number of milliseconds")
    return int(int(found[1]) * _UNITS_MS[found[2]])


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
        raise _wrong("owner", f"{text!r} is no address of an owner: use grpc://host:port, or grpc+tls://host:port")
    return text


def _client(values: Mapping[str, str]) -> ClientSettings | None:
    """The error shows no value: one of them may be a secret."""
    names = {"token": "token", "token_file": "tokenFile", "ca": "ca", "certificate": "certificate", "key": "key"}
    given = {one: values[name] for one, name in names.items() if name in values}
    if not given:
        return None
    _one_of(values, ("token", "tokenFile"))
    if ("certificate" in given) != ("key" in given):
        raise _wrong("certificate", "it and key are given both or not at all")
    for one, name in names.items():
        if given.get(one) == "":
            raise _wrong(name, "it is empty")
    return ClientSettings.model_validate(given)


def _wrong(name: str, why: str) -> InvalidInput:
    return InvalidInput(f"option {name}: {why}", option=name)
