"""The claim of a cluster of brokers to its part of the metadata store.

    /broker/owner    {"cluster": true, "folder": null}    the prefix belongs to a cluster, for good

Each broker has a session of its own there (`frazil.meta.session`), by which its changes are fenced. A server without
`cluster.enabled` would treat all topics as its own: it is refused, as a cluster is refused by the prefix of a server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from frazil.core.errors import MetadataInUse, NewerFormat
from frazil.core.settings.metadata import MetadataSettings
from frazil.meta.broker_keys import OWNER
from frazil.meta.store import ABSENT, MetaStore

FORMAT_VERSION = 1


def claim_for_cluster(meta: MetaStore, settings: MetadataSettings) -> None:
    """Claim the prefix for a cluster, or check that it is one's; raises `MetadataInUse`. Blocks."""
    value = json.dumps({"cluster": True, "folder": None}, sort_keys=True).encode()
    store = ", ".join(settings.endpoints)
    while (found := meta.get(OWNER)) is None:
        if meta.put_if(OWNER, value, ABSENT) is not None:
            return
    owner = json.loads(found.value)
    if int(owner.get("format", FORMAT_VERSION)) > FORMAT_VERSION:
        raise NewerFormat(f"{settings.prefix} at {store}", int(owner["format"]), FORMAT_VERSION)
    if not is_of_cluster(owner):
        advice = "it is not a cluster's: give the cluster a metadata.prefix of its own"
        raise MetadataInUse(store, settings.prefix, f"the server of the data folder {owner.get('path')}", advice)


def is_of_cluster(owner: Mapping[str, Any]) -> bool:
    """Whether a prefix with this owner belongs to a cluster."""
    return owner.get("cluster") is True


def cluster_prefix(settings: MetadataSettings) -> MetadataInUse:
    """Return the error for a server that is alone, at the prefix of a cluster."""
    advice = "set cluster.enabled: true to join it, or give this server a metadata.prefix of its own"
    return MetadataInUse(", ".join(settings.endpoints), settings.prefix, "a cluster of brokers", advice)
