"""The offsets of a stream in Spark's checkpoint, and the end of its next batch."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from frazil.core.clock import Clock
from frazil.core.errors import InvalidInput
from frazil.log.folder.former import cut_since
from frazil.pipeline.source.options import SourceOptions
from frazil.pipeline.source.planning import Look
from frazil.pipeline.source.ranges import Partition, capped

_log = logging.getLogger("frazil.pipeline")


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The stream's offset and start in each partition, and the log it read."""

    ends: Mapping[Partition, int]
    began: Mapping[Partition, int]
    logs: Mapping[Partition, str]

    def beginning(self) -> StreamOffset:
        return StreamOffset(self.began, self.began, self.logs)

    def as_json(self) -> dict[str, Any]:
        """Deterministic: Spark compares the text."""
        return {"offsets": _nested(self.ends), "began": _nested(self.began), "logs": _nested(self.logs)}

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> StreamOffset:
        return cls(_flat(value["offsets"]), _flat(value["began"]), _flat(value["logs"]))

    def renumbered(self, look: Look) -> StreamOffset:
        """Map to renumbered logs: offsets that the stream has read below the cut are unchanged."""
        logs = {}
        for key, log_id in self.logs.items():
            info = look.logs.get(key)
            cut = None if info is None else cut_since(info.former, log_id)
            logs[key] = info.log_id if info is not None and cut is not None and self.ends[key] <= cut else log_id
        return StreamOffset(self.ends, self.began, logs)

    def check_logs(self, look: Look, fail: bool) -> None:
        """A topic that was deleted or recreated does not have the rows that the stream expects."""
        for key, log_id in self.logs.items():
            found = look.logs.get(key)
            if found is None or found.log_id != log_id:
                what = "is gone" if found is None else "was recreated, and is another log"
                _tell(f"{key[0]} (partition {key[1]}) {what}", key[0], fail)

    def starts_after(self, before: StreamOffset) -> dict[Partition, int]:
        """Return the start of the batch that ends here: the end of the previous one, except for
        logs added in between."""
        same = {key: end for key, end in before.ends.items() if before.logs.get(key) == self.logs.get(key)}
        return {**self.began, **same}

    def within(self, look: Look) -> dict[Partition, int]:
        """Return how far to read of the logs that are unchanged."""
        return {
            key: end
            for key, end in self.ends.items()
            if key in look.logs and look.logs[key].log_id == self.logs.get(key)
        }


def waiting(last: StreamOffset, look: Look) -> int:
    """Return the number of rows that the stream has not planned yet."""
    last = last.renumbered(look)
    known = {
        key: end for key, end in last.ends.items() if key in look.logs and look.logs[key].log_id == last.logs.get(key)
    }
    return sum(max(0, end - known.get(key, 0)) for key, end in look.durable().items())


class Patience:
    """`minOffsetsPerTrigger`: a batch waits for that many rows, but at most `maxTriggerDelay` after the last one.

    As in Kafka's source, the first batch of a run never waits.
    """

    def __init__(self, options: SourceOptions, clock: Clock) -> None:
        self._rows_min = options.offsets_per_trigger_min
        self._delay_us_max = options.trigger_delay_ms_max * 1_000
        self._clock = clock
        self._last_us: int | None = None

    def is_over(self, rows: int) -> bool:
        """Whether the next batch may start now. Called once for each trigger."""
        if self._rows_min is None:
            return True
        now_us = self._clock.monotonic_us()
        if self._last_us is None or rows >= self._rows_min or now_us - self._last_us >= self._delay_us_max:
            self._last_us = now_us
            return True
        return False


def advanced(last: StreamOffset, look: Look, options: SourceOptions) -> StreamOffset:
    """Return the end of the next batch. A new partition is read from its beginning; a deleted one stays."""
    last = last.renumbered(look)
    last.check_logs(look, options.fail_on_data_loss)
    remade = {key for key, info in look.logs.items() if last.logs.get(key, info.log_id) != info.log_id}
    fresh = {key: look.first(info) for key, info in look.logs.items() if key not in last.logs or key in remade}
    starts = {**last.ends, **fresh}
    ends = capped(starts, look.durable(), options.offsets_per_trigger_max)
    logs = {key: info.log_id for key, info in look.logs.items()}
    return StreamOffset({**starts, **ends}, {**last.began, **fresh}, {**last.logs, **logs})


def _tell(what: str, topic: str, fail: bool) -> None:
    if fail:
        raise InvalidInput(f"{what}: start with a new checkpoint, or set option failOnDataLoss to false", topic=topic)
    _log.warning("%s; what was not read of it is skipped", what)


def _nested(values: Mapping[Partition, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for (topic, partition), value in sorted(values.items()):
        found.setdefault(topic, {})[str(partition)] = value
    return found


def _flat(values: Mapping[str, Mapping[str, Any]]) -> dict[Partition, Any]:
    return {(topic, int(number)): value for topic, partitions in values.items() for number, value in partitions.items()}
