"""What the broker counts, kept plain so that a hot path only adds numbers; a door turns them into metrics.

All is counted on the broker's loop and may be read from any thread.
"""

from __future__ import annotations

from collections import Counter

from frazil.core.broker_settings import Poison


class DeliveryCounts:
    """Of one subscription, since the process began."""

    __slots__ = ("acks", "dead_letters", "deliveries", "dropped", "nacks", "redeliveries", "timeouts")

    def __init__(self) -> None:
        self.deliveries = 0
        self.redeliveries = 0
        self.acks = 0
        self.nacks = 0
        self.timeouts = 0
        self.dead_letters = 0
        self.dropped = 0

    def gave_up(self, poison: Poison) -> None:
        if poison is Poison.DEAD_LETTER:
            self.dead_letters += 1
        else:
            self.dropped += 1


class BrokerCounts:
    """Of the whole broker: what producers sent, and calls that were refused, by the code of their error."""

    __slots__ = ("refused", "sends", "sent_bytes")

    def __init__(self) -> None:
        self.sends = 0
        self.sent_bytes = 0
        self.refused: Counter[str] = Counter()

    def sent(self, size_bytes: int) -> None:
        self.sends += 1
        self.sent_bytes += size_bytes
