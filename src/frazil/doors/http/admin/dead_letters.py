"""List dead letters, and publish them again to their topic."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query

from frazil.core import access
from frazil.core.access import Action, Right
from frazil.core.names import TopicName
from frazil.core.rows import Message
from frazil.doors.http.access import Who, needs
from frazil.doors.http.admin.cluster.owners import AT_OWNER
from frazil.doors.http.admin.models import INT_MAX, DeadLetterPage, Replay, ReplayOne, ReplayResult
from frazil.doors.http.admin.openapi import errors
from frazil.doors.http.admin.paths import TOPIC_PATTERN, TopicPath
from frazil.node.node import Node
from frazil.node.topics.dead_letters import (
    ATTEMPTS,
    BROKER,
    OURS,
    PRODUCER,
    REASON,
    SUBSCRIPTION,
    TOPIC,
    dead_letter_topic,
    original_offset,
)

LIMIT_DEFAULT, LIMIT_MAX = 20, 1_000

Source = Annotated[
    str | None,
    Query(
        alias="from",
        json_schema_extra={"pattern": TOPIC_PATTERN},
        description="the dead-letter topic of a policy, if it is not the default one",
    ),
]


def dead_letters_router(node: Node) -> APIRouter:
    router = APIRouter(
        prefix="/v1/topics/{namespace}/{topic}/dead-letters",
        tags=["dead letters"],
        responses=errors(400, 404, 409, 503),
    )

    async def reading(name: TopicPath, source: Source = None) -> Sequence[Right]:
        letters = _source(source) or dead_letter_topic(name)
        return [Right(Action.DESCRIBE, access.topic(str(name))), Right(Action.READ, access.topic(str(letters)))]

    async def replaying(name: TopicPath, source: Source = None) -> Sequence[Right]:
        """The topic that a letter names is checked too, when it is published."""
        return [*await reading(name, source), Right(Action.PRODUCE, access.topic(str(name)))]

    @router.get(
        "", operation_id="list_dead_letters", response_model=DeadLetterPage, dependencies=[needs(reading), AT_OWNER]
    )
    def list_dead_letters(
        who: Who,
        name: TopicPath,
        limit: Annotated[int, Query(ge=1, le=LIMIT_MAX, description="letters per page")] = LIMIT_DEFAULT,
        after: Annotated[
            int | None, Query(ge=0, lt=INT_MAX, description="`next` of the previous page: an offset")
        ] = None,
        source: Source = None,
    ) -> dict[str, Any]:
        """List dead letters of the topic, oldest first. A page has at most 8 MiB of payloads, or one letter."""
        found = node.dead_letters(who).read(name, after, limit, _source(source))
        return {"items": [_shown(letter) for letter in found.letters], "next": found.next}

    @router.post(
        "/replay",
        operation_id="replay_dead_letters",
        response_model=ReplayResult,
        dependencies=[needs(replaying), AT_OWNER],
    )
    async def replay_dead_letters(who: Who, name: TopicPath, wanted: Replay, source: Source = None) -> dict[str, Any]:
        """Publish one dead letter, or all from an offset on, to their original topics.

        At least once: dead letters are not removed, and a repeated call publishes them again. A replayed message has
        the attribute `x-replayed-dead-letter`, the offset of the dead letter.
        """
        letters = node.dead_letters(who)
        if isinstance(wanted, ReplayOne):
            await letters.replay_one(name, wanted.offset, _source(source))
            return {"replayed": 1, "next": None, "error": None}
        done = await letters.replay_all(name, wanted.after, wanted.limit, _source(source))
        return {
            "replayed": done.count,
            "next": done.next,
            "error": None if done.error is None else done.error.as_dict(),
        }

    return router


def _source(text: str | None) -> TopicName | None:
    return None if text is None else TopicName.parse(text)


def _shown(letter: Message) -> dict[str, Any]:
    attributes = letter.attributes
    attempts = attributes.get(ATTEMPTS, "")
    return {
        "offset": letter.offset,
        "append_time": letter.append_time,
        "publish_time": letter.publish_time,
        "payload": base64.b64encode(letter.payload).decode(),
        "text": _text(letter.payload),
        "key": None if letter.key is None else base64.b64encode(letter.key).decode(),
        "attributes": {name: value for name, value in attributes.items() if name not in OURS},
        "producer": letter.producer,
        "schema_id": letter.schema_id,
        "schema_version": letter.schema_version,
        "original_topic": attributes.get(TOPIC),
        "original_subscription": attributes.get(SUBSCRIPTION),
        "original_offset": original_offset(letter),
        "original_producer_id": attributes.get(PRODUCER),
        "original_broker": attributes.get(BROKER),
        "redeliveries": int(attempts) if attempts.isascii() and attempts.isdecimal() and len(attempts) < 10 else None,
        "reason": attributes.get(REASON),
    }


def _text(payload: bytes) -> str | None:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None
