"""A client's identity to the owner of one topic: a producer name, a client id, and the epoch it holds.

A name has one client at a time. A client whose name was taken over stays refused until its user opens the producer
again: it never reclaims the name by itself, neither after a disconnect nor after a restart of the owner.
"""

from __future__ import annotations

from collections.abc import Callable

from frazil.core.errors import ProducerFenced
from frazil.core.sequences import NO_EPOCH, ProducerOpening, new_client_id


class ProducerIdentity:
    """Not thread-safe: the sender guards it."""

    def __init__(self, producer: str, *, shared: bool) -> None:
        """`shared` means that other clients may use the same name, because a user chose it."""
        self.producer = producer
        self._shared = shared
        self._client = new_client_id()
        self._epoch: int | None = None
        self._seen: int | None = None
        self.fenced: ProducerFenced | None = None

    def of_renumbered(self) -> ProducerIdentity:
        """Return the same client for the log that replaced this topic's: it may know the producer from its rows."""
        copy = ProducerIdentity(self.producer, shared=self._shared)
        copy._client, copy._epoch, copy._seen, copy.fenced = self._client, self._epoch, self._seen, self.fenced
        return copy

    def opening(self, look: Callable[[], int]) -> ProducerOpening:
        """Return the request that opens the producer. `look` returns the epoch of the name before it is taken: if an
        answer is lost and another client has the name by then, the retry must not take it over.
        """
        if self._epoch is not None:
            return ProducerOpening(self._client, held=self._epoch)
        if self._seen is None:
            self._seen = look() if self._shared else NO_EPOCH
        return ProducerOpening(self._client, seen=self._seen)

    def opened(self, epoch: int, resumed: bool) -> bool:
        """Record the epoch. Returns whether the owner knows the outcome of earlier batches: they had the same epoch."""
        knows = resumed and epoch == self._epoch
        self._epoch = epoch
        return knows

    def fence(self, error: ProducerFenced) -> None:
        self.fenced = error

    def begin_anew(self) -> None:
        """Become a new client, because the user wants to reclaim the name."""
        self._client, self._epoch, self._seen, self.fenced = new_client_id(), None, None, None
