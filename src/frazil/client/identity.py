"""Who a client is to the owner of one topic: a producer's name, an id of its own, and the epoch that it holds.

A name has one client at a time. A client whose name was taken by another stays refused until its user opens the
producer again: it never takes the name back by itself, neither after a cut nor after a restart of the owner.
"""

from __future__ import annotations

from collections.abc import Callable

from frazil.core.errors import ProducerFenced
from frazil.core.sequences import NO_EPOCH, Opening, new_client_id


class ProducerIdentity:
    """Not thread-safe: its sender guards it."""

    def __init__(self, producer: str, *, shared: bool) -> None:
        """`shared` says that others may use the same name, because a user chose it."""
        self.producer = producer
        self._shared = shared
        self._client = new_client_id()
        self._epoch: int | None = None
        self._seen: int | None = None
        self.fenced: ProducerFenced | None = None

    def of_renumbered(self) -> ProducerIdentity:
        """The same client for the log that took the place of this topic's: it may know the producer by its rows."""
        copy = ProducerIdentity(self.producer, shared=self._shared)
        copy._client, copy._epoch, copy._seen, copy.fenced = self._client, self._epoch, self._seen, self.fenced
        return copy

    def opening(self, look: Callable[[], int]) -> Opening:
        """How it opens the producer now. `look` asks for the epoch that the name has before it is taken: if an answer
        is lost and the name has another client by then, the second attempt must not take it from that one."""
        if self._epoch is not None:
            return Opening(self._client, held=self._epoch)
        if self._seen is None:
            self._seen = look() if self._shared else NO_EPOCH
        return Opening(self._client, seen=self._seen)

    def opened(self, epoch: int, resumed: bool) -> bool:
        """Whether the owner knows what became of the batches that were sent before: they had the same epoch."""
        knows = resumed and epoch == self._epoch
        self._epoch = epoch
        return knows

    def fence(self, error: ProducerFenced) -> None:
        self.fenced = error

    def begin_anew(self) -> None:
        """Its user wants the name back: from now on this is a new client."""
        self._client, self._epoch, self._seen, self.fenced = new_client_id(), None, None, None
