"""Subjects with versions 1, 2, …, shared by threads and processes through the metadata store.

registry = SchemaRegistry(store, clock)
done = registry.register("orders", "avro", definition)
registry.latest("orders").definition.tagged_json()
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from frazil.core.clock import Clock
from frazil.core.errors import IncompatibleSchema, InvalidInput, InvalidSchema, SchemaNotFound, TryLater
from frazil.meta.store import ABSENT, VALUE_BYTES_MAX, MetaStore, StoredEntry
from frazil.registry.definition import FIELD, Definition, Validator, incompatibilities
from frazil.registry.definitions import parse_definition, stored_definition
from frazil.registry.issued_numbers import IssuedNumbers
from frazil.registry.kinds import CompatibilityMode, SchemaType
from frazil.registry.records import (
    NEWEST_ID_KEY,
    NamedVersion,
    SubjectRecord,
    VersionRecord,
    id_key,
    subject_key,
    subject_of,
    subjects_prefix,
    versions_prefix,
)

SUBJECT_BYTES_MAX = 200
VERSIONS_MAX = 1_000
DESCRIPTION_BYTES_MAX = 4 * 1024
CREATED_BY_BYTES_MAX = 256
TAGS_MAX = 32
TAG_BYTES_MAX = 128
TRIES_MAX = 100
KEPT_MAX = 256
"""Number of parsed versions, and of validators, kept in memory."""


@dataclass(frozen=True, slots=True)
class Registered:
    schema_id: int
    version: int
    is_new_version: bool
    fingerprint: str


@dataclass(frozen=True, slots=True)
class VersionInfo:
    schema_id: int
    version: int
    fingerprint: str
    description: str
    tags: tuple[str, ...]
    created_by: str
    created_at_us: int


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    subject: str
    compatibility_mode: CompatibilityMode
    info: VersionInfo
    definition: Definition


class SchemaRegistry:
    """The schema registry. A returned change is durable and visible to every process. Thread-safe."""

    def __init__(
        self,
        store: MetaStore,
        clock: Clock,
        token: Callable[[], str] = lambda: uuid.uuid4().hex,
        given: IssuedNumbers | None = None,
    ) -> None:
        """`token` returns a globally unique string. `given` outlives a restore of the store."""
        self._store = store
        self._given = given
        self._clock = clock
        self._token = token
        self._kept = functools.lru_cache(KEPT_MAX)(self._load)
        self._validators = functools.lru_cache(KEPT_MAX)(self._compile)

    def register(
        self,
        subject: str,
        schema_type: str,
        definition: bytes,
        *,
        description: str = "",
        created_by: str = "",
        tags: Sequence[str] = (),
    ) -> Registered:
        """Register the newest version; if the subject has the same schema already, return that version.

        Raises `IncompatibleSchema` if the subject's mode does not allow it after the latest version.
        """
        check_subject(subject)
        _check_words(description, created_by, tags)
        new = parse_definition(SchemaType.parse(schema_type), definition)
        made = functools.partial(
            VersionRecord,
            type=new.type,
            text=new.text,
            extra=new.extra(),
            fingerprint=new.fingerprint,
            description=description,
            tags=tuple(tags),
            created_by=created_by,
            created_at_us=self._clock.now_us(),
        )
        for _ in range(TRIES_MAX):
            entry, record = self._record(subject)
            if record is not None:
                same = next((each for each in record.versions if each.fingerprint == new.fingerprint), None)
                if same is not None:
                    return Registered(record.schema_id, same.version, False, new.fingerprint)
                self._check_may_follow(subject, record, new)
            before = self._new_subject(subject) if record is None else record
            number = self._next_version(before, new.fingerprint)
            key = f"{versions_prefix(before.schema_id)}{number}-{self._token()}"
            self._put_new(key, made(number).encode())
            after = before.with_version(number, new.fingerprint, key)
            revision = ABSENT if entry is None else entry.revision
            if self._store.put_if(subject_key(subject), after.encode(), revision) is not None:
                if self._given is not None:
                    self._given.gave(subject, after.schema_id, number, new.fingerprint)
                return Registered(after.schema_id, number, True, new.fingerprint)
            self._drop(key)
            if record is None:
                self._drop_id(subject, before.schema_id)
        raise _contended(subject)

    def start(self) -> None:
        """Import the numbers that the store has issued. Call once, before any other call."""
        if self._given is not None:
            entries = self._store.list(subjects_prefix())
            self._given.learn((subject_of(entry.key), SubjectRecord.decode(entry.value)) for entry in entries)

    def get(self, schema_id: int, version: int | None = None) -> SchemaVersion:
        """Return a version by schema id; the latest version by default."""
        entry = self._store.get(id_key(schema_id))
        _, record = (None, None) if entry is None else self._record(entry.value.decode())
        if entry is None or record is None or record.schema_id != schema_id:
            raise SchemaNotFound(schema_id=schema_id)
        return self._schema_version(entry.value.decode(), record, version)

    def latest(self, subject: str) -> SchemaVersion:
        return self._schema_version(subject, self._known(subject), None)

    def version(self, subject: str, version: int) -> SchemaVersion:
        return self._schema_version(subject, self._known(subject), version)

    def versions(self, subject: str) -> list[VersionInfo]:
        record = self._known(subject)
        entries = {entry.key: entry for entry in self._store.list(versions_prefix(record.schema_id))}
        found = [VersionRecord.decode(entries[each.key].value) for each in record.versions if each.key in entries]
        return [_info(record.schema_id, each) for each in found]

    def subjects(self) -> list[str]:
        return sorted(subject_of(entry.key) for entry in self._store.list(subjects_prefix()))

    def schema_id(self, subject: str) -> int:
        return self._known(subject).schema_id

    def compatibility_mode(self, subject: str) -> CompatibilityMode:
        return self._known(subject).mode

    def set_compatibility_mode(self, subject: str, mode: str) -> CompatibilityMode:
        """Set the mode for later registrations; existing versions are not checked again."""
        wanted = CompatibilityMode.parse(mode)
        self._change(subject, lambda record: replace(record, mode=wanted))
        return wanted

    def check_compatibility(
        self, subject: str, schema_type: str, definition: bytes, mode: str | None = None
    ) -> list[str]:
        """Return every reason why it could not be registered now, by the subject's mode or by `mode`; empty if it
        could.
        """
        wanted = None if mode is None else CompatibilityMode.parse(mode)
        new = parse_definition(SchemaType.parse(schema_type), definition)
        record = self._known(subject)
        if not record.versions:
            return []
        latest = self._kept(record.versions[-1].key)[1]
        return incompatibilities(new, latest, wanted or record.mode)

    def delete_version(self, subject: str, version: int) -> None:
        """Delete a version; its number is not reused. The subject keeps its id and mode, even without versions."""
        gone: list[NamedVersion] = []

        def without(record: SubjectRecord) -> SubjectRecord:
            named = record.named(version)
            if named is None:
                raise SchemaNotFound(subject, version)
            gone[:] = [named]
            return record.without(version)

        self._change(subject, without)
        self._drop(gone[0].key)
        self._validators.cache_clear()

    def validator(self, schema_id: int, version: int) -> Validator:
        """Return a cached validator: a version never changes. A version that another process
        deleted may stay cached.
        """
        return self._validators(schema_id, version)

    def _compile(self, schema_id: int, version: int) -> Validator:
        return self.get(schema_id, version).definition.validator()

    def _check_may_follow(self, subject: str, record: SubjectRecord, new: Definition) -> None:
        if len(record.versions) >= VERSIONS_MAX:
            raise InvalidInput(
                f"{subject} has {VERSIONS_MAX} versions; delete those that are not needed", subject=subject
            )
        if not record.versions or record.mode is CompatibilityMode.NONE:
            return
        latest = record.versions[-1]
        reasons = incompatibilities(new, self._kept(latest.key)[1], record.mode)
        if reasons:
            raise IncompatibleSchema(subject, latest.version, record.mode, reasons)

    def _new_subject(self, subject: str) -> SubjectRecord:
        """Create a subject with a new id, or with the id it once had. The id resolves only once the
        record is stored.
        """
        had = None if self._given is None else self._given.id_of(subject)
        schema_id = self._next_id() if had is None else had
        there = self._store.get(id_key(schema_id))
        if there is None:
            self._store.put_if(id_key(schema_id), subject.encode(), ABSENT)
        elif there.value != subject.encode():
            raise TryLater(f"{id_key(schema_id)} already exists; try again")
        return SubjectRecord(schema_id, CompatibilityMode.BACKWARD, 0, ())

    def _next_id(self) -> int:
        for _ in range(TRIES_MAX):
            entry = self._store.get(NEWEST_ID_KEY)
            given = 0 if self._given is None else self._given.newest_id()
            new = 1 + max(given, 0 if entry is None else int(entry.value))
            if self._store.put_if(NEWEST_ID_KEY, b"%d" % new, ABSENT if entry is None else entry.revision) is not None:
                if self._given is not None:
                    self._given.gave_newest_id(new)
                return new
        raise _contended("the next schema id")

    def _next_version(self, record: SubjectRecord, fingerprint: str) -> int:
        if self._given is None:
            return record.newest + 1
        return self._given.next_version(record.schema_id, record.newest, fingerprint)

    def _drop_id(self, subject: str, schema_id: int) -> None:
        """Remove the id, unless a concurrent registration of the same subject uses it."""
        _, now = self._record(subject)
        if now is None or now.schema_id != schema_id:
            self._drop(id_key(schema_id))

    def _change(self, subject: str, change: Callable[[SubjectRecord], SubjectRecord]) -> None:
        for _ in range(TRIES_MAX):
            entry, record = self._record(subject)
            if entry is None or record is None:
                raise SchemaNotFound(subject)
            if self._store.put_if(entry.key, change(record).encode(), entry.revision) is not None:
                return
        raise _contended(subject)

    def _record(self, subject: str) -> tuple[StoredEntry | None, SubjectRecord | None]:
        entry = self._store.get(subject_key(subject))
        return entry, None if entry is None else SubjectRecord.decode(entry.value)

    def _known(self, subject: str) -> SubjectRecord:
        check_subject(subject)
        _, record = self._record(subject)
        if record is None:
            raise SchemaNotFound(subject)
        return record

    def _schema_version(self, subject: str, record: SubjectRecord, version: int | None) -> SchemaVersion:
        if version is None and not record.versions:
            raise SchemaNotFound(subject, record.newest)
        named = record.versions[-1] if version is None else record.named(version)
        if named is None:
            raise SchemaNotFound(subject, version)
        content, definition = self._kept(named.key)
        return SchemaVersion(subject, record.mode, _info(record.schema_id, content), definition)

    def _load(self, key: str) -> tuple[VersionRecord, Definition]:
        entry = self._store.get(key)
        if entry is None:  # deleted since its subject was read
            raise TryLater("the version was deleted just now; try again")
        record = VersionRecord.decode(entry.value)
        return record, stored_definition(record.type, record.text, record.extra)

    def _put_new(self, key: str, value: bytes) -> None:
        if len(value) > VALUE_BYTES_MAX:
            raise InvalidSchema(FIELD, f"takes {len(value)} bytes when stored, and at most {VALUE_BYTES_MAX} are kept")
        if self._store.put_if(key, value, ABSENT) is None:
            raise TryLater(f"{key} already exists; try again")

    def _drop(self, key: str) -> None:
        """Remove an unreferenced key. A failure only leaves garbage."""
        entry = self._store.get(key)
        if entry is not None:
            self._store.delete(key, entry.revision)


def _info(schema_id: int, record: VersionRecord) -> VersionInfo:
    return VersionInfo(
        schema_id,
        record.version,
        record.fingerprint,
        record.description,
        record.tags,
        record.created_by,
        record.created_at_us,
    )


def _contended(what: str) -> TryLater:
    return TryLater(f"{what} was changed by others {TRIES_MAX} times meanwhile; try again")


def check_subject(subject: str) -> None:
    if not _is_text(subject, SUBJECT_BYTES_MAX) or not subject or not subject.isprintable():
        raise InvalidInput(
            f"subject: must have 1 to {SUBJECT_BYTES_MAX} bytes that can be printed, not {subject!a:.80}",
            field="subject",
        )


def _check_words(description: str, created_by: str, tags: Sequence[str]) -> None:
    if len(tags) > TAGS_MAX:
        raise InvalidInput(f"tags: at most {TAGS_MAX} are kept, not {len(tags)}", field="tags")
    limits = [("description", description, DESCRIPTION_BYTES_MAX), ("created_by", created_by, CREATED_BY_BYTES_MAX)]
    for field, text, size_max in limits + [("tags", tag, TAG_BYTES_MAX) for tag in tags]:
        if not _is_text(text, size_max):
            raise InvalidInput(f"{field}: must be a text of at most {size_max} bytes", field=field)


def _is_text(text: str, size_max: int) -> bool:
    try:
        return isinstance(text, str) and len(text.encode()) <= size_max
    except UnicodeEncodeError:  # an unpaired surrogate
        return False
