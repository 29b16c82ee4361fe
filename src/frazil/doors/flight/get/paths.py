"""Path descriptors: a topic as ["namespace", "topic"], or as ["/namespace/topic"]."""

from __future__ import annotations

from collections.abc import Sequence

from frazil.core.errors import InvalidInput
from frazil.core.names import TopicName


def topic_of(path: Sequence[str]) -> TopicName:
    if len(path) == 1:
        return TopicName.parse(path[0])
    if len(path) == 2:
        return TopicName.parse(f"/{path[0]}/{path[1]}")
    raise InvalidInput(
        f'descriptor: a path is ["namespace", "topic"] or ["/namespace/topic"], not {len(path)} parts', field="path"
    )


def path_of(name: TopicName) -> list[str]:
    return [name.namespace, name.topic]
