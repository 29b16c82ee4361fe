"""Models of the cluster's routes: brokers, their balance, and moves of topics."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, StrictBool

from frazil.core.cluster import BrokerState
from frazil.doors.http.admin.models import Given, IsNumber, Positive
from frazil.doors.http.admin.paging import Page

PARALLEL_MAX = 64
TIMEOUT_MS_MAX = 24 * 60 * 60 * 1_000
BROKER_LENGTH_MAX = 255

Parallel = Annotated[int, Field(ge=1, le=PARALLEL_MAX), IsNumber]
Timeout = Annotated[int, Field(ge=1, le=TIMEOUT_MS_MAX), IsNumber]
BrokerName = Annotated[str, Field(min_length=1, max_length=BROKER_LENGTH_MAX)]


class BrokerModel(BaseModel):
    broker_id: str
    state: BrokerState = Field(description="draining: it gets no topics; gone: its lease has ended")
    is_leader: bool = Field(description="whether it decides where topics go")
    is_asked: bool = Field(description="whether it answers this call")
    topics: int = Field(description="topics and partitions that it owns")
    load: float
    addresses: dict[str, str] = Field(description="by door")


class BrokerPage(Page[BrokerModel]):
    pass


class BrokerLoad(BaseModel):
    broker_id: str
    state: BrokerState
    topics: int
    load: float
    overloaded: bool
    underloaded: bool


class BalanceModel(BaseModel):
    """How evenly the load is spread over the active brokers."""

    mean: float
    max: float
    min: float
    deviation: float = Field(description="the standard deviation")
    variation: float = Field(description="the deviation as a part of the mean")
    brokers: list[BrokerLoad]


class Rebalance(Given):
    dry_run: StrictBool = Field(False, description="plan the moves, and make none")
    moves_max: Positive | None = None


class MoveModel(BaseModel):
    topic: str
    from_broker: str
    to_broker: str
    load: float = Field(description="the load of the topic")
    reason: str


class RebalanceResult(BaseModel):
    dry_run: bool
    moves: list[MoveModel] = Field(description="those that were made, or that would be made")


class Drain(Given):
    timeout_ms: Timeout | None = Field(None, description="answer after this time, even if topics are left; null: wait")
    parallel_max: Parallel = Field(4, description="topics that move at once")


class DrainResult(BaseModel):
    """Topics that have not moved stay where they are, and are served."""

    broker_id: str
    total: int
    moved: int
    pending: int
    failed: dict[str, str] = Field(description="why a topic could not be moved, by its name")


class ActivateResult(BaseModel):
    broker_id: str
    state: BrokerState


class OwnerModel(BaseModel):
    topic: str
    broker_id: str | None = Field(description="null while no broker serves the topic")
    addresses: dict[str, str] = Field(description="those of its owner, by door")
    state: BrokerState | None
    problem: str | None = Field(description="why no broker serves it")


class Owners(BaseModel):
    owners: list[OwnerModel] = Field(description="the owner of the topic, or of each of its partitions")


class TopicMove(Given):
    to: BrokerName | None = Field(None, description="the broker; null: the least loaded one")
    accept_loss: StrictBool = Field(
        False, description="also if its owner is gone: rows that were not uploaded are lost"
    )
