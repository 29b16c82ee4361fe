"""Validation of messages against the registry schemas of their topics, before they are logged.

The registry blocks, so it is asked in threads; per-message state is cached in memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from frazil.core.errors import FrazilError, MessageRefused, MetadataUnavailable
from frazil.node.threads import Threads
from frazil.registry.records import TopicSchemaRecord
from frazil.registry.topics import TopicSchemas

WARNED_MAX = 1_000
CHECKS_MAX = 4
"""Payloads that are validated together."""

_log = logging.getLogger("frazil.serve")


Judged = tuple[bytes, int | None, int | None]
"""The validated parts of a message: its payload, and the id and version of its schema."""


class SchemaChecks:
    """Created and used on one event loop."""

    def __init__(self, topics: TopicSchemas, asking: Threads) -> None:
        self._topics = topics
        self._asking = asking
        self._checking = Threads("frazil-checks", CHECKS_MAX)
        self._warned: set[tuple[str, str]] = set()
        self._looking: dict[str, asyncio.Task[None]] = {}

    def close(self) -> None:
        self._checking.close()

    def passes_all(self, topic: str) -> bool:
        """Whether a topic is recently known to have no schema: the usual case, which awaits nothing."""
        kept = self._topics.kept(topic)
        return kept is not None and kept[1] and kept[0].passes_all

    async def check(self, topic: str, message: Judged) -> None:
        """Raises `MessageRefused` if the topic enforces its schema; otherwise each reason is logged once."""
        record = await self._record(topic)
        if record.passes_all:
            return
        if record.checks_payloads:
            await self._checking.run(self._judge, topic, record, message)
        else:
            self._judge(topic, record, message)

    async def check_all(self, topic: str, messages: Callable[[], Iterable[Judged]]) -> None:
        """Check a batch: all of it is refused if one message is. `messages` is called in a thread, if at all."""
        record = await self._record(topic)
        if not record.passes_all:
            await self._checking.run(self._judge_all, topic, record, messages)

    def _judge_all(self, topic: str, record: TopicSchemaRecord, messages: Callable[[], Iterable[Judged]]) -> None:
        for row, message in enumerate(messages()):
            try:
                self._judge(topic, record, message)
            except MessageRefused as error:
                raise MessageRefused(topic, f"row {row}: {error.fields['reason']}") from None

    def _judge(self, topic: str, record: TopicSchemaRecord, message: Judged) -> None:
        problem = self._topics.validate(topic, record, *message)
        if problem is not None and (topic, problem) not in self._warned and len(self._warned) < WARNED_MAX:
            self._warned.add((topic, problem))
            _log.warning("%s: %s", topic, problem)

    async def learn(self, topic: str) -> None:
        """Load the settings of a topic that will be published to, so that its first message need not wait for the
        store."""
        try:
            await self._record(topic)
        except MetadataUnavailable as error:
            _log.debug("the schema settings of %s are loaded with its first message: %s", topic, error)

    async def _record(self, topic: str) -> TopicSchemaRecord:
        """If the store does not answer, use the cached record: messages of a known topic are not delayed."""
        record, is_recent = self._topics.kept(topic) or (await self._asking.run(self._topics.recent, topic), True)
        if not is_recent and topic not in self._looking:
            self._looking[topic] = asyncio.create_task(self._look_again(topic))
        return record

    async def _look_again(self, topic: str) -> None:
        try:
            await self._asking.run(self._topics.recent, topic)
        except FrazilError as error:
            _log.debug("the schema settings of %s could not be loaded: %s", topic, error)
        finally:
            del self._looking[topic]
