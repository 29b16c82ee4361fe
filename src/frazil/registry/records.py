"""What the registry keeps in the store of small facts: keys, and values in JSON.

A subject's own record says which versions it has, and is changed only by who knows its present revision. The content of
a version has a key of its own, which nobody else ever used, and is there before the subject names it: so what a subject
names is always whole, and never changes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, unquote

from frazil.core.names import TopicName
from frazil.registry.kinds import CompatibilityMode, SchemaType, ValidationPolicy

NEWEST_ID_KEY = "/schemas/newest_id"
_SUBJECTS = "/schemas/subjects/"


def subject_key(subject: str) -> str:
    return _SUBJECTS + quote(subject, safe="")


def subjects_prefix() -> str:
    return _SUBJECTS


def subject_of(key: str) -> str:
    return unquote(key.removeprefix(_SUBJECTS))


def id_key(schema_id: int) -> str:
    return f"/schemas/ids/{schema_id}"


def versions_prefix(schema_id: int) -> str:
    return f"/schemas/versions/{schema_id}/"


def topic_key(topic: TopicName) -> str:
    return f"/schemas/topics{topic}"


def topics_prefix() -> str:
    return "/schemas/topics/"


@dataclass(frozen=True, slots=True)
class NamedVersion:
    """A version as its subject names it; the rest is under its key."""

    version: int
    fingerprint: str
    key: str


@dataclass(frozen=True, slots=True)
class SubjectRecord:
    schema_id: int
    mode: CompatibilityMode
    newest: int
    """The number of the newest version that ever was: numbers are not used again."""
    versions: tuple[NamedVersion, ...]

    def named(self, version: int) -> NamedVersion | None:
        return next((each for each in self.versions if each.version == version), None)

    def with_version(self, number: int, fingerprint: str, key: str) -> SubjectRecord:
        return replace(self, newest=number, versions=(*self.versions, NamedVersion(number, fingerprint, key)))

    def without(self, version: int) -> SubjectRecord:
        return replace(self, versions=tuple(each for each in self.versions if each.version != version))

    def encode(self) -> bytes:
        versions = [[each.version, each.fingerprint, each.key] for each in self.versions]
        return _dump({"schema_id": self.schema_id, "mode": self.mode, "newest": self.newest, "versions": versions})

    @classmethod
    def decode(cls, value: bytes) -> SubjectRecord:
        read = json.loads(value)
        versions = tuple(NamedVersion(*each) for each in read["versions"])
        return cls(read["schema_id"], CompatibilityMode(read["mode"]), read["newest"], versions)


@dataclass(frozen=True, slots=True)
class VersionRecord:
    version: int
    type: SchemaType
    text: str
    extra: dict[str, str]
    fingerprint: str
    description: str
    tags: tuple[str, ...]
    created_by: str
    created_at_us: int

    def encode(self) -> bytes:
        return _dump({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def decode(cls, value: bytes) -> VersionRecord:
        read = json.loads(value)
        return cls(**read | {"type": SchemaType(read["type"]), "tags": tuple(read["tags"])})


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """How a topic stands to schemas; a topic that nobody has asked about has this too."""

    subject: str | None = None
    schema_id: int | None = None
    policy: ValidationPolicy = ValidationPolicy.WARN
    checks_payloads: bool = False

    @property
    def passes_all(self) -> bool:
        """Whether no message of it need be looked at."""
        nothing_to_fit = self.schema_id is None and self.policy is not ValidationPolicy.ENFORCE
        return nothing_to_fit or self.policy is ValidationPolicy.NONE

    def encode(self) -> bytes:
        return _dump({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def decode(cls, value: bytes) -> TopicRecord:
        read = json.loads(value)
        return cls(**read | {"policy": ValidationPolicy(read["policy"])})


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
