"""Dead letters: listed, and published again where they came from."""

from __future__ import annotations

import base64
from typing import Annotated, Any

from fastapi import APIRouter, Query

from frazil.broker.dead_letters import ATTEMPTS, BROKER, OURS, PRODUCER, REASON, SUBSCRIPTION, TOPIC
from frazil.broker.replay import original_offset, read_dead_letters, replay_all, replay_one
from frazil.core.names import TopicName
from frazil.core.rows import Message
from frazil.serve.admin.models import INT_MAX, DeadLetterPage, Replay, ReplayOne, ReplayResult
from frazil.serve.admin.openapi import errors
from frazil.serve.admin.parts import AdminParts
from frazil.serve.admin.paths import TOPIC_PATTERN, TopicPath

LIMIT_DEFAULT, LIMIT_MAX = 20, 1_000

Source = Annotated[
    str | None,
    Query(
        alias="from",
        json_schema_extra={"pattern": TOPIC_PATTERN},
        description="the dead-letter topic of a policy, if it is not the usual one",
    ),
]


def dead_letters_router(parts: AdminParts) -> APIRouter:
    router = APIRouter(
        prefix="/v1/topics/{namespace}/{topic}/dead-letters",
        tags=["dead letters"],
        responses=errors(400, 404, 409, 503),
    )

    @router.get("", operation_id="list_dead_letters", response_model=DeadLetterPage)
    def list_dead_letters(
        name: TopicPath,
        limit: Annotated[int, Query(ge=1, le=LIMIT_MAX, description="letters of a page")] = LIMIT_DEFAULT,
        after: Annotated[
            int | None, Query(ge=0, lt=INT_MAX, description="`next` of the page before: an offset")
        ] = None,
        source: Source = None,
    ) -> dict[str, Any]:
        """What subscriptions of the topic gave up, oldest first. A page has at most 8 MiB of payloads, or one."""
        found = read_dead_letters(parts.storage, name, after, limit, _source(source))
        return {"items": [_shown(letter) for letter in found.letters], "next": found.next}

    @router.post("/replay", operation_id="replay_dead_letters", response_model=ReplayResult)
    async def replay_dead_letters(name: TopicPath, wanted: Replay, source: Source = None) -> dict[str, Any]:
        """Publish one, or all from a place on, to the topic that each came from.

        At least once: the letters stay, and a call that is repeated publishes them again. A replayed message has the
        attribute `x-replayed-dead-letter`, the letter's offset.
        """
        broker = parts.broker_parts().broker
        if isinstance(wanted, ReplayOne):
            await replay_one(broker, parts.storage, name, wanted.offset, _source(source))
            return {"replayed": 1, "next": None, "error": None}
        done = await replay_all(broker, parts.storage, name, wanted.after, wanted.limit, _source(source))
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
