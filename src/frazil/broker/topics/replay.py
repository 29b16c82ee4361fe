"""Read dead letters page by page, and publish them again to their topic."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from frazil.broker.broker import Broker
from frazil.broker.topics.dead_letters import OFFSET, OURS, REPLAYED, TOPIC, dead_letter_topic
from frazil.broker.topics.topic import BrokerTopic, OutgoingMessage
from frazil.core.errors import FrazilError, InvalidInput, InvalidName, OffsetOutOfRange, TopicNotFound
from frazil.core.names import TopicName
from frazil.core.rows import Message, Origin, to_messages
from frazil.log.read.positions import earliest
from frazil.log.storage import Storage
from frazil.log.topic import Topic

PAGE_BYTES_MAX = 8 * 1024 * 1024
"""Size of payloads; a larger one is its own page."""
PAGE_ROWS_MAX = 10_000
"""Rows examined for one page: those of other partitions are skipped."""


@dataclass(frozen=True, slots=True)
class LetterPage:
    letters: list[Message]
    next: int | None
    """Letters after this offset were not examined; None at the end."""


@dataclass(frozen=True, slots=True)
class Replayed:
    count: int
    next: int | None
    error: FrazilError | None
    """Why the letter after `next` could not be published; those before it were."""


def read_dead_letters(
    storage: Storage, topic: TopicName, after: int | None, limit: int, source: TopicName | None = None
) -> LetterPage:
    """Return dead letters in order. For a partition only its own. Blocks.

    `source` is the dead-letter topic of a policy: only its letters of `topic` are returned.
    """
    letters = _topic_of_letters(storage, topic, source)
    if letters is None:
        return LetterPage([], None)
    end, start = letters.log.visible_end, 0 if after is None else after + 1
    start = max(start, earliest(letters.log))
    found: list[Message] = []
    size, at = 0, start - 1
    for message in _messages(letters, start, min(end, start + PAGE_ROWS_MAX)):
        if _is_of(topic, message, source):
            size += len(message.payload)
            if found and (len(found) == limit or size > PAGE_BYTES_MAX):
                break
            found.append(message)
        at = message.offset
    return LetterPage(found, at if start <= at < end - 1 else None)


def _is_of(topic: TopicName, letter: Message, source: TopicName | None) -> bool:
    """The default dead-letter topic has only letters of one topic and its partitions."""
    original = letter.attributes.get(TOPIC)
    if topic.partition_of()[0] != topic:
        return original == str(topic)
    return source is None or original == str(topic) or (original or "").startswith(f"{topic}-part-")


Publish = Callable[[BrokerTopic, OutgoingMessage], Awaitable[int]]
"""With the checks and traces of every other message."""
MayPublish = Callable[[TopicName, Message], None]
"""Raises if the caller may not publish a letter to the topic that it names; called before the topic is looked up."""


def _anywhere(_: TopicName, __: Message) -> None:
    pass


async def replay_one(
    broker: Broker,
    publish: Publish,
    storage: Storage,
    topic: TopicName,
    offset: int,
    source: TopicName | None = None,
    may_publish: MayPublish = _anywhere,
) -> int:
    """Return the new offset of the message in its topic."""
    letter = await asyncio.to_thread(_letter, storage, topic, offset, source)
    return await publish(_target(broker, letter, may_publish), _as_it_was(letter))


async def replay_all(
    broker: Broker,
    publish: Publish,
    storage: Storage,
    topic: TopicName,
    after: int | None,
    limit: int,
    source: TopicName | None = None,
    may_publish: MayPublish = _anywhere,
) -> Replayed:
    """Replay in order, up to `limit`. Repeating it without `after` publishes them again."""
    count = 0
    while True:
        page = await asyncio.to_thread(read_dead_letters, storage, topic, after, limit - count, source)
        sends = []
        error: FrazilError | None = None
        for letter in page.letters:
            try:
                sends.append(asyncio.ensure_future(publish(_target(broker, letter, may_publish), _as_it_was(letter))))
            except FrazilError as refused:
                error = refused
                break
        answers = await asyncio.gather(*sends, return_exceptions=True)
        for letter, answer in zip(page.letters, answers, strict=False):
            if isinstance(answer, FrazilError):
                error = answer
                break
            if isinstance(answer, BaseException):
                raise answer
            count, after = count + 1, letter.offset
        if error is not None:
            if count == 0:
                raise error
            return Replayed(count, after, error)
        if page.next is None or count >= limit:
            return Replayed(count, page.next, None)
        after = page.next


def _topic_of_letters(storage: Storage, topic: TopicName, source: TopicName | None) -> Topic | None:
    """Return None for an existing topic without dead letters."""
    if source is not None:
        found = storage.topic(str(source), create=False)
        found.check_is_message_topic()
        return found
    try:
        return storage.topic(str(dead_letter_topic(topic)), create=False)
    except TopicNotFound:
        if storage.family(topic):
            return None
        raise TopicNotFound(str(topic)) from None


def _messages(letters: Topic, start: int, end: int) -> Iterator[Message]:
    if start >= end:
        return
    reader = letters.read_batches(start, end=end)
    try:
        for batch in reader:
            yield from to_messages(batch)
    finally:
        reader.close()


def _letter(storage: Storage, topic: TopicName, offset: int, source: TopicName | None) -> Message:
    letters = _topic_of_letters(storage, topic, source)
    if letters is None:
        raise OffsetOutOfRange(str(dead_letter_topic(topic)), offset, 0, 0)
    first, end = earliest(letters.log), letters.log.visible_end
    if not first <= offset < end:
        raise OffsetOutOfRange(letters.name, offset, first, end)
    letter = next(_messages(letters, offset, offset + 1))
    if source is not None and not _is_of(topic, letter, source):
        raise InvalidInput(f"offset: the message at {offset} of {source} is no dead letter of {topic}", field="offset")
    return letter


def _target(broker: Broker, letter: Message, may_publish: MayPublish) -> BrokerTopic:
    """Return the original topic. A deleted topic is not recreated."""
    name = letter.attributes.get(TOPIC, "")
    try:
        parsed = TopicName.parse(name)
    except InvalidName:
        raise InvalidInput(f"the message at offset {letter.offset} is no dead letter: it has no {TOPIC}") from None
    may_publish(parsed, letter)
    found = broker.topics.get(parsed)
    if found is None:
        raise TopicNotFound(name, f"the dead letter at offset {letter.offset} came from it; create it first")
    return found


def _as_it_was(letter: Message) -> OutgoingMessage:
    attributes = {name: value for name, value in letter.attributes.items() if name not in OURS}
    key = None if letter.key is None else letter.key.decode(errors="replace")
    origin = Origin(
        letter.producer, int(letter.publish_time.timestamp() * 1_000_000), letter.schema_id, letter.schema_version
    )
    return OutgoingMessage(letter.payload, key, {**attributes, REPLAYED: str(letter.offset)}, origin)


def original_offset(letter: Message) -> int | None:
    text = letter.attributes.get(OFFSET, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None
