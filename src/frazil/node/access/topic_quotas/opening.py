"""Open the quotas of topics over the other parts of security."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from frazil.core.clock import Clock
from frazil.log.storage import Storage
from frazil.node.access.opening import AccessParts
from frazil.node.access.topic_quotas.claims import Elsewhere, Family, TopicClaims, no_topic
from frazil.node.access.topic_quotas.parts import TopicQuotas
from frazil.node.access.topic_quotas.stored import StoredQuota


@contextmanager
def topic_quotas_open(
    parts: AccessParts, storage: Storage, family: Family, clock: Clock, elsewhere: Elsewhere = no_topic
) -> Iterator[TopicQuotas]:
    directory = parts.gate.directory
    claims = TopicClaims(directory, parts.quotas, storage, family, parts.gate, elsewhere)
    if not parts.quotas.limits_stored:
        yield TopicQuotas(claims)
        return
    stored = StoredQuota(directory, parts.quotas, claims, clock)
    try:
        yield TopicQuotas(claims, stored)
    finally:
        stored.close()
