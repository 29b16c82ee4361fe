"""The interface to the ownership of topics: who owns which, and calls to change it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from frazil.core.cluster import Balance, BrokerInfo, DrainReport, MoveCounts, PlannedMove
from frazil.core.names import TopicName


class Ownership(Protocol):
    """Queries read what this broker has learnt by watching the metadata store: they do no I/O, from any thread.

    The coroutines run on the event loop of the node.
    """

    @property
    def is_clustered(self) -> bool: ...

    @property
    def broker_id(self) -> str:
        """The name of this broker."""
        ...

    def owner_of(self, topic: TopicName) -> BrokerInfo | None:
        """Return the broker that serves the topic; None while there is none."""
        ...

    def must_own(self, topic: TopicName) -> None:
        """Raise `NotOwner` with the owner's addresses, or `TopicUnavailable` with the reason.

        A topic that no broker knows passes: its own call raises `TopicNotFound`, or creates it.
        """
        ...

    def topics(self) -> Collection[TopicName]:
        """Return all topics and partitions of the cluster, with any owner."""
        ...

    def family(self, name: TopicName) -> Collection[TopicName]:
        """Return the existing ones of the topic (without partition number) and its partitions, with any owner."""
        ...

    def refresh(self, topic: TopicName) -> None:
        """Read the present record of a topic and its partitions, so that queries know it. Blocks: not on the event
        loop. Raises `MetadataUnavailable`."""
        ...

    def elsewhere(self, name: TopicName) -> Mapping[TopicName, str | None]:
        """Return those of `family` that other brokers own, with the ids of their logs."""
        ...

    def problems(self) -> Mapping[TopicName, str]:
        """Return why topics of this broker could not be opened, given away or discarded; they are tried again."""
        ...

    def brokers(self) -> list[BrokerInfo]:
        """Return all brokers, sorted by id, including those that are gone and still own topics."""
        ...

    def leader(self) -> str | None:
        """Return the id of the broker that decides where topics go; None while there is none."""
        ...

    def balance(self) -> Balance: ...

    @property
    def counts(self) -> MoveCounts:
        """The topics that have come to this broker and gone from it."""
        ...

    async def move(self, topic: TopicName, to: str | None = None, *, accept_loss: bool = False) -> None:
        """Move a topic to a broker, or to the least loaded one; it is served there when this returns.

        Raises `BrokerNotFound`, `LossNotAccepted`, `TopicUnavailable`. `accept_loss`: if the owner is gone, rows that
        were not uploaded are lost.
        """
        ...

    async def drain(self, broker_id: str, *, timeout_ms: int | None = None, parallel_max: int = 4) -> DrainReport:
        """Move all topics of a broker away, and give it no new ones until `activate`."""
        ...

    async def activate(self, broker_id: str) -> None:
        """Let a drained broker get topics again."""
        ...

    async def rebalance(self, *, dry_run: bool = False, moves_max: int | None = None) -> list[PlannedMove]:
        """Plan moves that even the load out, and make them unless `dry_run` is set."""
        ...
