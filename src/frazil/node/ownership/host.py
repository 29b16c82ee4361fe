"""The interface to the topics of this broker, which the ownership of topics opens and closes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from frazil.core.names import TopicName
from frazil.meta.topic_records import TopicIdentity


@dataclass(frozen=True, slots=True)
class LocalLog:
    """A log in the folder of this broker."""

    log_id: str
    epoch: int
    """The epoch of the topic's record (`TopicIdentity.epoch_of`) with which `TopicHost.open` opened it last.

    Kept in the folder: a folder of another epoch may lack rows that another owner has written since.
    """


class TopicHost(Protocol):
    """Opens and closes topics. The coroutines run on the event loop of the node; those of one topic never overlap.

    Calls of clients for a topic are let through by `Ownership.must_own`, only between a successful `open` (or `reopen`)
    and the next `close_and_upload` or `discard`. Any of the coroutines may raise a `FrazilError`: it is reported, and
    the topic is tried again later; no other topic is affected.
    """

    def local(self) -> Mapping[TopicName, LocalLog]:
        """Return all logs in the folder of this broker, open or not. A topic without a log is never among them.

        It is asked for single topics often: a live mapping, not a listing of the folder.
        """
        ...

    async def open(self, topic: TopicName, identity: TopicIdentity) -> int:
        """Open a topic whose record names this broker. Does nothing if it is open already with this epoch.

        Returns its epoch in the object store, or 0 if its folder may be behind that: then the store has all its rows.
        A log in the folder is of this log id and epoch, or there is none: then it is adopted from the objects. Begins
        an epoch in the object store, which stops all earlier owners, and loads subscriptions and producers.
        """
        ...

    async def upload(self, topic: TopicName) -> None:
        """Upload what an open topic has, while it is served: then it is closed for a short time only."""
        ...

    async def close_and_upload(self, topic: TopicName) -> int:
        """Close a topic so that another broker can go on, and return its end; everything durable is in the store.

        New calls get `TryLater`, streams end, cursors are stored. After an error the topic is `reopen`ed.
        """
        ...

    async def reopen(self, topic: TopicName) -> None:
        """Serve a topic again after `close_and_upload`, whether it succeeded or not: it stays with this broker."""
        ...

    async def discard(self, topic: TopicName) -> None:
        """Close a topic that another broker owns by now, if it is open, and remove its local folder.

        If objects do not cover the folder's rows, it is set aside and reported. Does nothing without a folder.
        """
        ...

    def forget(self, topic: TopicName) -> None:
        """Forget a topic that was deleted. Who deletes it closes it, and removes its folder."""
        ...

    def traffic(self) -> Mapping[TopicName, int]:
        """Return the bytes published to each topic since the last call; topics without any are left out."""
        ...
