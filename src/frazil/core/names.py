"""Topic names, `/namespace/topic`, validated before they are used in a path."""

from __future__ import annotations

import re
from dataclasses import dataclass

from frazil.core.errors import InvalidName

PART_LENGTH_MAX = 128
_PART = re.compile(rf"[A-Za-z0-9_.-]{{1,{PART_LENGTH_MAX}}}", re.ASCII)
_PARTITION = re.compile(r"(?P<base>.+)-part-(?P<number>\d{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    namespace: str
    topic: str

    @classmethod
    def parse(cls, text: str) -> TopicName:
        if not isinstance(text, str):
            raise InvalidName(f"a topic name is a string like /default/orders, not {type(text).__name__}")
        parts = text.split("/")
        if len(parts) != 3 or parts[0] != "":
            raise InvalidName(
                f"topic name {_shown(text)} must have the form /namespace/topic", name=_shown(text), field="topic"
            )
        for field, part in zip(("namespace", "topic"), parts[1:], strict=True):
            if part in (".", "..") or not _PART.fullmatch(part):
                raise InvalidName(
                    f"the {field} in {_shown(text)} must be 1 to {PART_LENGTH_MAX} of A-Z a-z 0-9 _ . - "
                    "and neither '.' nor '..'",
                    name=_shown(text),
                    field=field,
                )
        return cls(parts[1], parts[2])

    def check_new(self) -> None:
        """Raise `InvalidName` if no catalog can have the namespace of this new topic."""
        if "" in self.namespace.split("."):
            raise InvalidName(
                f"the namespace in {self} must not begin or end with a dot, or have two in a row: no catalog has such",
                name=str(self),
                field="namespace",
            )

    def partition_of(self) -> tuple[TopicName, int]:
        """Return the topic and N for the partition name `…-part-N`; an unpartitioned topic is its own partition 0."""
        part = _PARTITION.fullmatch(self.topic)
        return (self, 0) if part is None else (TopicName(self.namespace, part["base"]), int(part["number"]))

    def __str__(self) -> str:
        return f"/{self.namespace}/{self.topic}"


def check_namespace(text: str) -> None:
    if text in (".", "..") or not _PART.fullmatch(text):
        raise InvalidName(
            f"namespace {_shown(text)} must be 1 to {PART_LENGTH_MAX} of A-Z a-z 0-9 _ . - and neither '.' nor '..'",
            name=_shown(text),
            field="namespace",
        )


def _shown(text: str) -> str:
    """Escape and shorten an untrusted name for a message."""
    escaped = ascii(text)
    return escaped if len(escaped) <= 160 else escaped[:157] + "..."
