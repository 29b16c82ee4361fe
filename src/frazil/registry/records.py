"""The registry's records in the metadata store: keys, and values in JSON.

A subject's record lists its versions, and is changed only by compare-and-set on its revision. The content of a version
has a unique key, and is stored before the subject refers to it: so a listed version is always complete and never
changes.
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
    """A version as listed by its subject; the content is under its own key."""

    version: int
    fingerprint: str
    key: str


@dataclass(frozen=True, slots=True)
class SubjectRecord:
    schema_id: int
    mode: CompatibilityMode
    newest: int
    """The highest version number ever used: numbers are not reused."""
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
class TopicSchemaRecord:
    """The schema settings of a topic; the defaults apply to a topic without a record."""

    subject: str | None = None
    schema_id: int | None = None
    policy: ValidationPolicy = ValidationPolicy.WARN
    checks_payloads: bool = False

    @property
    def passes_all(self) -> bool:
        """Whether no message needs validation."""
        nothing_to_fit = self.schema_id is None and self.policy is not ValidationPolicy.ENFORCE
        return nothing_to_fit or self.policy is ValidationPolicy.NONE

    def encode(self) -> bytes:
        return _dump({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def decode(cls, value: bytes) -> TopicSchemaRecord:
        read = json.loads(value)
        return cls(**read | {"policy": ValidationPolicy(read["policy"])})


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
