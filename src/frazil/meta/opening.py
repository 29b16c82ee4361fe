"""Open the metadata store that the settings select."""

from __future__ import annotations

import contextlib

from frazil.core.errors import InvalidSettings, MetadataUnavailable
from frazil.core.settings import Settings
from frazil.core.settings.metadata import MetadataType
from frazil.meta.sqlite import SqliteStore
from frazil.meta.store import MetaStore

META_FILE = "~meta.db"
LOOK_MS_MAX = 3_000


def open_meta(settings: Settings) -> MetaStore:
    """Open the store; the caller closes it. An etcd store opens whether or not etcd is reachable."""
    if settings.metadata.type is MetadataType.SQLITE:
        if settings.data is None:
            raise InvalidSettings("metadata.type: sqlite needs a data folder; set data, or use etcd")
        return SqliteStore(settings.data / META_FILE)
    from frazil.meta.etcd import EtcdStore  # importing gRPC takes longer than most commands

    return EtcdStore(settings.metadata)


def has_meta(settings: Settings) -> bool:
    """Whether a store is configured; for a file in the data folder, whether it exists."""
    if settings.metadata.type is MetadataType.SQLITE:
        return settings.data is not None and (settings.data / META_FILE).exists()
    return True


def probe_members(settings: Settings) -> dict[str, str | None]:
    """Return, for each etcd member, why it is unusable, or None. Each is asked alone, by a read that needs a quorum."""
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
