"""What a broker of a cluster needs besides what the settings themselves require of each other."""

from __future__ import annotations

from frazil.core.errors import InvalidSettings
from frazil.core.settings import Settings
from frazil.core.settings.lake import ObjectStoreType


def check_cluster(settings: Settings, *, serves: bool) -> None:
    """Raise `InvalidSettings` for a cluster whose brokers would not see the same rows. `serves`: in `frazil serve`."""
    if not settings.cluster.enabled:
        return
    if not serves:
        raise _wrong(
            "cluster.enabled", "the folder is that of a broker of a cluster: start it with frazil serve, and connect"
        )
    if settings.data is None:
        raise _wrong("data", "a broker of a cluster needs a data folder")
    store, where = settings.objects.store or settings.object_store, "objects.store"
    if store.type is ObjectStoreType.MEMORY:
        raise _wrong(f"{where}.type", "the brokers of a cluster share the store: memory is that of one process")
    if store.type is ObjectStoreType.LOCAL and store.path is None:
        raise _wrong(f"{where}.path", "the brokers of a cluster share the store: name a folder that all of them reach")
    if settings.pipeline.enabled and settings.embedded_catalog is not None:
        raise _wrong(
            "catalog", "the brokers of a cluster share the tables: name a catalog, or set pipeline.enabled: false"
        )
    if settings.security.audit.topic is not None:
        raise _wrong("security.audit.topic", "in a cluster each broker writes its audit log to a file")


def _wrong(field: str, problem: str) -> InvalidSettings:
    return InvalidSettings(f"{field}: {problem}", field=field)
