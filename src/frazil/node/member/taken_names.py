"""The names that producers have taken of a log, where its next owner finds them: in the metadata store.

    /producers/{log id}    {"epochs": {name: epoch}, "clients": {name: client id}, "floor": epoch}

Stored before a client that opens a producer is answered. Without it, the next owner would not know whose each name is,
and would refuse clients that reconnect.
"""

from __future__ import annotations

import json
import logging

from frazil.core.errors import TryLater
from frazil.log.write.producers import ProducersRecord
from frazil.meta.broker_keys import TAKEN_NAMES
from frazil.meta.store import VALUE_BYTES_MAX, KeyAt, MetaStore

_log = logging.getLogger("frazil.cluster")


def store_taken(meta: MetaStore, log_id: str, taken: ProducersRecord, owned: KeyAt) -> bool:
    """Durable when it returns; returns False if the log is not `owned` as its record was read: nothing is stored.

    Raises `TryLater` if the names are too many to be stored.
    """
    value = json.dumps(
        {"epochs": dict(taken.epochs), "clients": dict(taken.clients), "floor": taken.floor}, separators=(",", ":")
    ).encode()
    if len(value) > VALUE_BYTES_MAX:
        raise TryLater(f"{len(taken.epochs)} producers have taken names, which need {len(value)} bytes in the metadata")
    return meta.put_all({TAKEN_NAMES + log_id: value}, only_at=owned)


def read_taken(meta: MetaStore, log_id: str) -> ProducersRecord | None:
    """Return None if nobody has opened a producer, or the record is damaged: then clients open theirs again."""
    found = meta.get(TAKEN_NAMES + log_id)
    if found is None:
        return None
    try:
        read = json.loads(found.value)
        epochs = {str(name): int(epoch) for name, epoch in read["epochs"].items()}
        clients = {str(name): str(client) for name, client in read["clients"].items()}
        return ProducersRecord(epochs, clients, int(read["floor"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        _log.error("%s cannot be read, so clients open their producers again: %s", found.key, error)
        return None
