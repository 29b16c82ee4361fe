"""Notes of a deletion in progress: what is deleted, so that it goes on after a crash and can be proved.

    /tenants-deleting/{tenant}/logs/{log id}                   {"topic", "rows"}
    /tenants-deleting/{tenant}/tables/{namespace}/{table}      {"location", "files", "bytes"}
    /tenants-deleting/{tenant}/keys/{id}                       {"owner"}
    /tenants-deleting/{tenant}/bindings/{hash}                 {"principal", "role", "scope"}

A note is stored before its thing is deleted. All notes go with the record of the tenant, when nothing is left.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from frazil.core.names import TopicName
from frazil.meta.store import ABSENT, KeyAt, MetaStore
from frazil.node.telemetry.tenants import DELETING, tenant_key


class DeletionNotes:
    """The notes of one tenant. All calls block."""

    def __init__(self, store: MetaStore, tenant: str) -> None:
        self._store = store
        self._tenant = tenant
        self._prefix = f"{DELETING}{tenant}/"

    def log(self, topic: TopicName, log_id: str | None, rows: int | None) -> None:
        """Note a log; one without an id, of a non-reliable topic, holds nothing."""
        self._note(f"logs/{log_id or topic}", {"topic": str(topic), "rows": rows})

    def table(self, namespace: str, table: str, location: str) -> None:
        self._note(f"tables/{namespace}/{table}", {"location": location, "files": 0, "bytes": 0})

    def purged(self, namespace: str, table: str, location: str, files: int, size_bytes: int) -> None:
        """Count what was removed of a table, in addition to what an earlier call has removed."""
        known = self.tables().get(f"{namespace}/{table}", {"files": 0, "bytes": 0})
        value = {"location": location, "files": known["files"] + files, "bytes": known["bytes"] + size_bytes}
        self._store.put_all({f"{self._prefix}tables/{namespace}/{table}": _encoded(value)})

    def key(self, key_id: str, owner: str) -> None:
        self._note(f"keys/{key_id}", {"owner": owner})

    def binding(self, number: str, binding: Mapping[str, str]) -> None:
        self._note(f"bindings/{number}", binding)

    def logs(self) -> dict[str, dict[str, Any]]:
        return self._all("logs")

    def tables(self) -> dict[str, dict[str, Any]]:
        return self._all("tables")

    def keys(self) -> dict[str, dict[str, Any]]:
        return self._all("keys")

    def bindings(self) -> dict[str, dict[str, Any]]:
        return self._all("bindings")

    def remove_all(self, only_at: KeyAt) -> bool:
        """Remove the notes and the record of the tenant: nothing of it is left. Returns False if the record has
        changed."""
        return self._store.delete_all([tenant_key(self._tenant)], [self._prefix], only_at=only_at)

    def _note(self, name: str, value: Mapping[str, Any]) -> None:
        """A note that exists is kept: it was made before anything was deleted."""
        self._store.put_if(self._prefix + name, _encoded(value), ABSENT)

    def _all(self, kind: str) -> dict[str, dict[str, Any]]:
        prefix = f"{self._prefix}{kind}/"
        return {entry.key.removeprefix(prefix): json.loads(entry.value) for entry in self._store.list(prefix)}


def _encoded(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
