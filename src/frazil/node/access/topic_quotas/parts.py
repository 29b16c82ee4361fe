"""The parts of the quotas of topics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from frazil.node.access.topic_quotas.claims import TopicClaims
    from frazil.node.access.topic_quotas.stored import StoredQuota


@dataclass(frozen=True, slots=True)
class TopicQuotas:
    claims: TopicClaims | None = None
    """None while security is off."""
    stored: StoredQuota | None = None
    """None if no principal has such a quota: then nothing is measured."""


NO_QUOTAS = TopicQuotas()
