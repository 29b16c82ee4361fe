"""Dead letters read page by page, and published again where they came from."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from frazil.broker.broker import Broker
from frazil.broker.dead_letters import OFFSET, OURS, REPLAYED, TOPIC, dead_letter_topic
from frazil.broker.topic import BrokerTopic, Outgoing
from frazil.core.errors import FrazilError, InvalidInput, InvalidName, OffsetOutOfRange, TopicNotFound
from frazil.core.names import TopicName
from frazil.core.rows import Message, Origin, to_messages
from frazil.log.history import first_offset
from frazil.log.storage import Storage
from frazil.log.topic import Topic

PAGE_BYTES_MAX = 8 * 1024 * 1024
"""Of payloads; a larger one is a page by itself."""
PAGE_ROWS_MAX = 10_000
"""So many are looked at for one page: those of other partitions are passed over."""


@dataclass(frozen=True, slots=True)
class Page:
    letters: list[Message]
    next: int | None
    """Whatever comes after this offset was not looked at; None at the end."""


@dataclass(frozen=True, slots=True)
class Replayed:
    count: int
    next: int | None
    error: FrazilError | None
    """What the letter after `next` could not be published for; those before it are."""


def read_dead_letters(
    storage: Storage, topic: TopicName, after: int | None, limit: int, source: TopicName | None = None
) -> Page:
    """In the order in which they came. Of a partition only its own; blocks.

    `source` is the dead-letter topic of a policy: of it only the letters of `topic`."""
    letters = _topic_of_letters(storage, topic, source)
    if letters is None:
        return Page([], None)
    end, start = letters.log.visible_end, 0 if after is None else after + 1
    start = max(start, first_offset(letters.log))
    found: list[Message] = []
    size, at = 0, start - 1
    for message in _messages(letters, start, min(end, start + PAGE_ROWS_MAX)):
        if _is_of(topic, message, source):
            size += len(message.payload)
            if found and (len(found) == limit or size > PAGE_BYTES_MAX):
                break
            found.append(message)
        at = message.offset
    return Page(found, at if start <= at < end - 1 else None)


def _is_of(topic: TopicName, letter: Message, source: TopicName | None) -> bool:
    """The usual topic of dead letters has those of one topic and its partitions alone."""
    original = letter.attributes.get(TOPIC)
    if topic.partition_of()[0] != topic:
        return original == str(topic)
    return source is None or original == str(topic) or (original or "").startswith(f"{topic}-part-")


async def replay_one(
    broker: Broker, storage: Storage, topic: TopicName, offset: int, source: TopicName | None = None
) -> int:
    """Returns the offset that the message has now in its topic."""
    letter = await asyncio.to_thread(_letter, storage, topic, offset, source)
    return await _target(broker, letter).publish(_as_it_was(letter))


async def replay_all(
    broker: Broker,
    storage: Storage,
    topic: TopicName,
    after: int | None,
    limit: int,
    source: TopicName | None = None,
) -> Replayed:
    """In their order, up to `limit`. Whoever repeats it without `after` publishes them once more."""
    count = 0
    while True:
        page = await asyncio.to_thread(read_dead_letters, storage, topic, after, limit - count, source)
        sends = []
        error: FrazilError | None = None
        for letter in page.letters:
            try:
                sends.append(asyncio.ensure_future(_target(broker, letter).publish(_as_it_was(letter))))
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
    """None of a topic that is there and has none."""
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
    first, end = first_offset(letters.log), letters.log.visible_end
    if not first <= offset < end:
        raise OffsetOutOfRange(letters.name, offset, first, end)
    letter = next(_messages(letters, offset, offset + 1))
    if source is not None and not _is_of(topic, letter, source):
        raise InvalidInput(f"offset: the message at {offset} of {source} is no dead letter of {topic}", field="offset")
    return letter


def _target(broker: Broker, letter: Message) -> BrokerTopic:
    """Where it came from. A topic that is gone is not made again."""
    name = letter.attributes.get(TOPIC, "")
    try:
        found = broker.topics.get(TopicName.parse(name))
    except InvalidName:
        raise InvalidInput(f"the message at offset {letter.offset} is no dead letter: it has no {TOPIC}") from None
    if found is None:
        raise TopicNotFound(name, f"the dead letter at offset {letter.offset} came from it; create it first")
    return found


def _as_it_was(letter: Message) -> Outgoing:
    attributes = {name: value for name, value in letter.attributes.items() if name not in OURS}
    key = None if letter.key is None else letter.key.decode(errors="replace")
    origin = Origin(
        letter.producer, int(letter.publish_time.timestamp() * 1_000_000), letter.schema_id, letter.schema_version
    )
    return Outgoing(letter.payload, key, {**attributes, REPLAYED: str(letter.offset)}, origin)


def original_offset(letter: Message) -> int | None:
    text = letter.attributes.get(OFFSET, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None
