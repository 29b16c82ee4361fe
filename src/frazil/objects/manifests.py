"""Manifests: what is known of each uploaded object, in the metadata store.

    /objects/{log id}/{epoch:08d}/{first offset:020d}    {"end", "bytes", "etag", "crc", …}: `StoredObject.as_content`

    /objects-dropped/{log id}    [{"start", "end", "retention"}, …]: rows that no tier holds any more
    /objects-removed/{log id}    {"below"}: objects that end at or below this offset are removed, or will be

They save requests, and say what belongs in the store: an object that has one and is missing is damage. They are stored
after their objects, so the newest objects may lack them. A listing of the store is enough to make them again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable

from frazil.core.stored_objects import StoredObject
from frazil.log.retention.dropped import DroppedRange, with_dropped
from frazil.meta.store import KeyAt, MetaStore
from frazil.objects.names import ObjectName, parse_name

MANIFESTS = "/objects/"
DROPPED = "/objects-dropped/"
REMOVED = "/objects-removed/"

_log = logging.getLogger("frazil.objects")


def manifest_key(one: StoredObject) -> str:
    return f"{MANIFESTS}{ObjectName(one.log_id, one.epoch, one.first)}"


def log_manifests(log_id: str) -> str:
    """Return the prefix of all manifests of a log."""
    return f"{MANIFESTS}{log_id}/"


class Manifests:
    """Thread-safe. Calls raise `MetadataUnavailable`."""

    def __init__(self, meta: MetaStore) -> None:
        self.meta = meta

    def of(self, log_id: str) -> list[StoredObject]:
        """Return the objects that have a manifest, by name. One that can't be read counts as missing."""
        found = []
        for entry in self.meta.list(log_manifests(log_id)):
            name = parse_name(entry.key.removeprefix(MANIFESTS))
            try:
                if name is None:
                    raise ValueError("it is no name of an object")
                found.append(StoredObject.from_content(*name, json.loads(entry.value)))
            except (ValueError, TypeError, KeyError) as error:
                _log.warning("the manifest %s can't be read, and is made again from the object: %s", entry.key, error)
        return found

    def put(self, objects: Iterable[StoredObject]) -> None:
        values = {manifest_key(one): json.dumps(one.as_content(), separators=(",", ":")).encode() for one in objects}
        if values:
            self.meta.put_all(values)

    def remove(self, objects: Iterable[StoredObject]) -> None:
        keys = [manifest_key(one) for one in objects]
        if keys:
            self.meta.delete_all(keys)

    def note_removed(
        self, log_id: str, below: int, dropped: DroppedRange | None = None, only_at: KeyAt | None = None
    ) -> bool:
        """Store that objects which end at or below an offset are about to be removed: the log's next owner must not
        count on them. `dropped` are rows which no table holds: it has to account for them too.

        Returns False if `only_at` does not hold: the log has another owner, whose notes these would replace.
        """
        values = {REMOVED + log_id: json.dumps({"below": below}).encode()}
        if dropped is not None:
            noted = [one.as_content() for one in with_dropped(self.dropped(log_id), dropped)]
            values[DROPPED + log_id] = json.dumps(noted, separators=(",", ":")).encode()
        if only_at is None:
            self.meta.put_all(values)
            return True
        return self.meta.put_all(values, only_at=only_at)

    def removed_below(self, log_id: str) -> int:
        """Return the offset below which objects count no more: their removal has begun."""
        found = self.meta.get(REMOVED + log_id)
        try:
            return 0 if found is None else int(json.loads(found.value)["below"])
        except (ValueError, TypeError, KeyError) as error:
            _log.error("%s%s can't be read: %s", REMOVED, log_id, error)
            return 0

    def dropped(self, log_id: str) -> tuple[DroppedRange, ...]:
        """Return what retention has removed of a log's objects. If that can't be read, its rows count as missing."""
        found = self.meta.get(DROPPED + log_id)
        try:
            return () if found is None else tuple(DroppedRange.from_content(one) for one in json.loads(found.value))
        except (ValueError, TypeError, KeyError) as error:
            _log.error("%s%s can't be read, so nobody knows what retention has removed: %s", DROPPED, log_id, error)
            return ()

    def remove_log(self, log_id: str) -> None:
        self.meta.delete_all([DROPPED + log_id, REMOVED + log_id], [log_manifests(log_id)])
