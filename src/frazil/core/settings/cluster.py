"""Settings of a cluster of brokers on one metadata store."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from frazil.core.settings.group import SettingsGroup

_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)


class ClusterSettings(SettingsGroup):
    """Several brokers share the topics of one metadata store. Needs `metadata.type: etcd` and `objects.enabled`."""

    enabled: bool = Field(False, description="whether this server is a broker of a cluster")
    broker_id: str | None = Field(None, description="name of this broker, unique in the cluster; unset, the host name")
    lease_ms: int = Field(
        4_000, ge=2_000, le=120_000, description="a broker that etcd has not heard of for this time is gone"
    )
    drain_ms_max: int = Field(
        20_000, ge=0, le=3_600_000, description="a stopping broker moves its topics away for at most this time"
    )
    linger_ms: int = Field(
        6_000,
        ge=0,
        le=60_000,
        description="a stopping broker that gave topics away tells their clients the new owners for so long,"
        " within `cluster.drain_ms_max`",
    )
    moves_parallel_max: int = Field(16, ge=1, le=64, description="topics that a broker gives or takes at once")
    rebalance: bool = Field(True, description="whether topics move by themselves to even the load out")
    rebalance_interval_ms: int = Field(
        60_000, ge=1_000, le=86_400_000, description="how often the leader looks at the balance"
    )
    rebalance_moves_max: int = Field(10, ge=1, le=10_000, description="topics that one look may move")
    rebalance_threshold: float = Field(
        0.2, gt=0, le=10, description="coefficient of variation of the brokers' loads above which topics move"
    )

    @field_validator("broker_id")
    @classmethod
    def _is_a_name(cls, value: str | None) -> str | None:
        if value is not None and not _ID.fullmatch(value):
            raise ValueError("must have 1 to 64 letters, digits, _ . and -")
        return value
