"""A record of all schema ids and versions ever issued, kept with the data in case the metadata is restored.

A message names its schema by id and version. A metadata store that is restored from an older backup would issue the
same numbers to other schemas. This record says which schema each number was issued to, so that the number is reused for
that schema or for none.

    /given/newest_id                       the highest id
    /given/ids/{subject}                   the id of a subject
    /given/versions/{id}/{version:020d}    the fingerprint of a version
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote

from frazil.meta.store import MetaStore
from frazil.registry.records import SubjectRecord

_NEWEST_ID = "/given/newest_id"


class IssuedNumbers:
    """Durable when a call returns. Only the owner of the data folder uses it."""

    def __init__(self, local: MetaStore) -> None:
        self._local = local

    def learn(self, subjects: Iterable[tuple[str, SubjectRecord]]) -> None:
        """Import the numbers of the metadata store at startup: it may be older than this record, or predate it."""
        known = {entry.key for entry in self._local.list("/given/")}
        found: dict[str, bytes] = {}
        newest = self.newest_id()
        for subject, record in subjects:
            newest = max(newest, record.schema_id)
            found[_id_key(subject)] = b"%d" % record.schema_id
            found |= {_version_key(record.schema_id, one.version): one.fingerprint.encode() for one in record.versions}
        new = {key: value for key, value in found.items() if key not in known}
        if newest > self.newest_id():
            new[_NEWEST_ID] = b"%d" % newest
        if new:
            self._local.put_all(new)

    def newest_id(self) -> int:
        found = self._local.get(_NEWEST_ID)
        return 0 if found is None else int(found.value)

    def gave_newest_id(self, schema_id: int) -> None:
        if schema_id > self.newest_id():
            self._local.put_all({_NEWEST_ID: b"%d" % schema_id})

    def id_of(self, subject: str) -> int | None:
        found = self._local.get(_id_key(subject))
        return None if found is None else int(found.value)

    def next_version(self, schema_id: int, newest: int, fingerprint: str) -> int:
        """Return the next number after `newest` that was issued to this schema, or to no other."""
        number = newest + 1
        while (had := self._local.get(_version_key(schema_id, number))) is not None:
            if had.value == fingerprint.encode():
                break
            number += 1
        return number

    def gave(self, subject: str, schema_id: int, version: int, fingerprint: str) -> None:
        values = {_id_key(subject): b"%d" % schema_id, _version_key(schema_id, version): fingerprint.encode()}
        self._local.put_all(values)


def _id_key(subject: str) -> str:
    return f"/given/ids/{quote(subject, safe='')}"


def _version_key(schema_id: int, version: int) -> str:
    return f"/given/versions/{schema_id}/{version:020d}"
