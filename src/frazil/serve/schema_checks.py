"""Messages beside the schemas that their topics have in the registry, before they are logged.

The registry blocks, so it is asked in threads; what is asked for each message is kept in memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from frazil.core.errors import FrazilError, MessageRefused, MetadataUnavailable
from frazil.registry.records import TopicRecord
from frazil.registry.topics import TopicSchemas
from frazil.serve.threads import Threads

WARNED_MAX = 1_000
CHECKS_MAX = 4
"""Payloads that are looked at together."""

_log = logging.getLogger("frazil.serve")


Judged = tuple[bytes, int | None, int | None]
"""What is looked at of a message: its payload, and the schema's id and version that it names."""


class SchemaChecks:
    """Made and used on one event loop."""

    def __init__(self, topics: TopicSchemas, asking: Threads) -> None:
        self._topics = topics
        self._asking = asking
        self._checking = Threads("frazil-checks", CHECKS_MAX)
        self._warned: set[tuple[str, str]] = set()
        self._looking: dict[str, asyncio.Task[None]] = {}

    def close(self) -> None:
        self._checking.close()

    def passes_all(self, topic: str) -> bool:
        """Whether a topic is known to have no schema, and that lately: the rule, for which nothing is awaited."""
        kept = self._topics.kept(topic)
        return kept is not None and kept[1] and kept[0].passes_all

    async def check(self, topic: str, message: Judged) -> None:
        """`MessageRefused` where the topic enforces its schema; a warning is written once for each reason."""
        record = await self._record(topic)
        if record.passes_all:
            return
        if record.checks_payloads:
            await self._checking.run(self._judge, topic, record, message)
        else:
            self._judge(topic, record, message)

    async def check_all(self, topic: str, messages: Callable[[], Iterable[Judged]]) -> None:
        """The same for a batch: all of it is refused if one message is. `messages` is called in a thread, if at all."""
        record = await self._record(topic)
        if not record.passes_all:
            await self._checking.run(self._judge_all, topic, record, messages)

    def _judge_all(self, topic: str, record: TopicRecord, messages: Callable[[], Iterable[Judged]]) -> None:
        for row, message in enumerate(messages()):
            try:
                self._judge(topic, record, message)
            except MessageRefused as error:
                raise MessageRefused(topic, f"row {row}: {error.fields['reason']}") from None

    def _judge(self, topic: str, record: TopicRecord, message: Judged) -> None:
        problem = self._topics.judge(topic, record, *message)
        if problem is not None and (topic, problem) not in self._warned and len(self._warned) < WARNED_MAX:
            self._warned.add((topic, problem))
            _log.warning("%s: %s", topic, problem)

    async def learn(self, topic: str) -> None:
        """What is set for a topic that will be published to: its first message need not wait for the store."""
        try:
            await self._record(topic)
        except MetadataUnavailable as error:
            _log.debug("what is set for %s is looked up with its first message: %s", topic, error)

    async def _record(self, topic: str) -> TopicRecord:
        """A store that does not answer holds up no message of a topic that is known: what was known holds on."""
        record, is_recent = self._topics.kept(topic) or (await self._asking.run(self._topics.recent, topic), True)
        if not is_recent and topic not in self._looking:
            self._looking[topic] = asyncio.create_task(self._look_again(topic))
        return record

    async def _look_again(self, topic: str) -> None:
        try:
            await self._asking.run(self._topics.recent, topic)
        except FrazilError as error:
            _log.debug("what is set for %s could not be looked up: %s", topic, error)
        finally:
            del self._looking[topic]
