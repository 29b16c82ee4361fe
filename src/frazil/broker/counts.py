"""The broker's counters, kept plain so that a hot path only adds numbers; exported as metrics elsewhere.

All are counted on the broker's loop and may be read from any thread.
"""

from __future__ import annotations

from collections import Counter

from frazil.core.errors import FrazilError
from frazil.core.settings.broker import Poison


class DeliveryCounts:
    """Counters of one subscription, since the process started."""

    __slots__ = ("acks", "dead_letters", "deliveries", "dropped", "letters_failed", "nacks", "redeliveries", "timeouts")

    def __init__(self) -> None:
        self.deliveries = 0
        self.redeliveries = 0
        self.acks = 0
        self.nacks = 0
        self.timeouts = 0
        self.dead_letters = 0
        self.letters_failed = 0
        self.dropped = 0

    def gave_up(self, poison: Poison) -> None:
        if poison is Poison.DEAD_LETTER:
            self.dead_letters += 1
        else:
            self.dropped += 1


class BrokerCounts:
    """Counters of the whole broker: messages sent, and calls refused by error code."""

    __slots__ = ("refused", "sends", "sent_bytes")

    def __init__(self) -> None:
        self.sends = 0
        self.sent_bytes = 0
        self.refused: Counter[str] = Counter()

    def sent(self, size_bytes: int) -> None:
        self.sends += 1
        self.sent_bytes += size_bytes

    def refuse(self, error: FrazilError) -> None:
        self.refused[error.code] += 1
