"""Names in paths. Subscriptions and subjects may contain any character, including an encoded slash."""

from __future__ import annotations

import re
from typing import Annotated, Any
from urllib.parse import unquote

from fastapi import Depends, Path
from pydantic import AfterValidator
from starlette.types import ASGIApp, Receive, Scope, Send

from frazil.core.names import PART_LENGTH_MAX, TopicName
from frazil.node.types.registry import SUBJECT_BYTES_MAX, check_subject

_KEPT = re.compile(rb"%(25|2[Ff])")
_WORD = rf"[A-Za-z0-9_.\-]{{1,{PART_LENGTH_MAX}}}"
NAME_PATTERN = rf"^(?!\.{{1,2}}$){_WORD}$"
TOPIC_PATTERN = rf"^/(?!\.{{1,2}}/){_WORD}/(?!\.{{1,2}}$){_WORD}$"

_Part = Annotated[str, Path(json_schema_extra={"pattern": NAME_PATTERN})]
NamespacePath = _Part
SubscriptionPath = Annotated[str, AfterValidator(unquote), Path(min_length=1, max_length=1_024)]


def _subject(text: str) -> str:
    subject = unquote(text)
    check_subject(subject)
    return subject


SubjectPath = Annotated[
    str, AfterValidator(_subject), Path(json_schema_extra={"minLength": 1, "maxLength": SUBJECT_BYTES_MAX})
]


async def _topic(namespace: _Part, topic: _Part) -> TopicName:
    return TopicName.parse(f"/{unquote(namespace)}/{unquote(topic)}")


TopicPath = Annotated[TopicName, Depends(_topic)]


class KeepSlashes:
    """Paths are split before they are decoded: `%2F` and `%25` stay, and each name is decoded separately."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _KEPT.search(raw := scope.get("raw_path") or b""):
            path = unquote(_KEPT.sub(lambda found: b"%25" + found[1], raw.split(b"?")[0]).decode("latin-1"))
            scope = {**scope, "path": path}
        await self._app(scope, receive, send)


def topic_name(text: str) -> str:
    return str(TopicName.parse(text))


TopicText = Annotated[str, AfterValidator(topic_name)]
TOPIC_EXTRA: dict[str, Any] = {"pattern": TOPIC_PATTERN, "examples": ["/default/orders"]}
