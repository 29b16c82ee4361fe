"""The creators of topics, as records of the metadata store and in memory.

    /security/creators/{namespace}/{topic}      {"topic", "principal", "logs": {name: log id, …}}

A record is written before its topic is created, with `logs` null, and again with the ids of the new logs. It is deleted
with the topic. A record whose logs do not exist (any more) is stale, and no topic is charged to its principal.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from frazil.core.errors import InvalidInput
from frazil.core.names import TopicName
from frazil.meta.store import StoredEntry
from frazil.meta.topic_records import CREATOR_RECORDS, creator_key

_log = logging.getLogger("frazil.access")


@dataclass(frozen=True, slots=True)
class Creator:
    """Who created a topic, or the partitions of one."""

    topic: TopicName
    """The name without a partition number."""
    principal: str
    logs: Mapping[TopicName, str | None] | None = None
    """The ids of the created logs, None for a non-reliable topic; None altogether while they are being created."""

    def made(self, name: TopicName, is_of_log: Callable[[str | None], bool]) -> bool:
        """Whether the principal created this topic. `is_of_log`: whether it has that log, or had it before it was
        renumbered."""
        if self.logs is None:
            return name.partition_of()[0] == self.topic
        return name in self.logs and is_of_log(self.logs[name])

    def encode(self) -> bytes:
        logs = None if self.logs is None else {str(name): log_id for name, log_id in sorted(self.logs.items())}
        content = {"topic": str(self.topic), "principal": self.principal, "logs": logs}
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, value: bytes) -> Creator | None:
        """Return None for a record that is damaged, or that a newer version wrote: nobody is charged for its topic."""
        try:
            read = json.loads(value)
            logs = read["logs"]
            known = None if logs is None else {TopicName.parse(name): log_id for name, log_id in logs.items()}
            return cls(TopicName.parse(read["topic"]), str(read["principal"]), known)
        except (ValueError, KeyError, TypeError, AttributeError, InvalidInput) as error:
            _log.warning("the record of a topic's creator can't be read, so nobody is charged: %s", error)
            return None


class Creators:
    """All records, by topic and by principal. The directory changes them, one call at a time; any thread reads."""

    def __init__(self, entries: Iterable[StoredEntry] = ()) -> None:
        self._by_key: dict[str, Creator] = {}
        self._by_principal: dict[str, dict[str, Creator]] = {}
        for entry in entries:
            self.apply(entry.key, entry.value)

    def of_topic(self, name: TopicName) -> Creator | None:
        """Return the record of a topic, or of the base topic of a partition.

        It may be stale, or that of a topic whose name differs in case.
        """
        return self._by_key.get(creator_key(name))

    def of_principal(self, principal: str) -> list[Creator]:
        """Return the records of a principal; some may be stale."""
        return list(self._by_principal.get(principal, {}).values())

    def apply(self, key: str, value: bytes | None) -> None:
        """Apply a changed or deleted record; other keys are ignored."""
        if not key.startswith(CREATOR_RECORDS):
            return
        before, made = self._by_key.get(key), None if value is None else Creator.decode(value)
        if made is None:
            self._by_key.pop(key, None)
        else:
            self._by_key[key] = made
            self._by_principal.setdefault(made.principal, {})[key] = made
        if before is not None and (made is None or made.principal != before.principal):
            own = self._by_principal[before.principal]
            del own[key]
            if not own:
                del self._by_principal[before.principal]
