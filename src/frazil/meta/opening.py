"""Which store of metadata the settings ask for."""

from __future__ import annotations

import contextlib

from frazil.core.errors import InvalidSettings, MetadataUnavailable
from frazil.core.metadata_settings import MetadataType
from frazil.core.settings import Settings
from frazil.meta.sqlite import SqliteStore
from frazil.meta.store import MetaStore

META_FILE = "~meta.db"
LOOK_MS_MAX = 3_000


def open_meta(settings: Settings) -> MetaStore:
    """The store, which its caller closes. That of etcd is opened whether etcd is there or not."""
    if settings.metadata.type is MetadataType.SQLITE:
        if settings.data is None:
            raise InvalidSettings("metadata.type: sqlite needs a data folder; set data, or use etcd")
        return SqliteStore(settings.data / META_FILE)
    from frazil.meta.etcd import EtcdStore  # gRPC takes longer to import than most verbs to run

    return EtcdStore(settings.metadata)


def has_meta(settings: Settings) -> bool:
    """Whether anything can be stored; of a file in the data folder, whether it was ever made."""
    if settings.metadata.type is MetadataType.SQLITE:
        return settings.data is not None and (settings.data / META_FILE).exists()
    return True


def look_at_members(settings: Settings) -> dict[str, str | None]:
    """What keeps each member of etcd from being used, or None. Each is asked alone, by a read that needs a quorum."""
    found: dict[str, str | None] = {}
    for endpoint in settings.metadata.endpoints:
        timeout_ms = min(settings.metadata.timeout_ms, LOOK_MS_MAX)
        alone = settings.metadata.model_copy(update={"endpoints": (endpoint,), "timeout_ms": timeout_ms})
        try:
            with contextlib.closing(open_meta(settings.model_copy(update={"metadata": alone}))) as store:
                store.get("/")
            found[endpoint] = None
        except MetadataUnavailable as error:
            found[endpoint] = str(error.reason)
    return found
