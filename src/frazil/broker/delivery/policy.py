"""How a subscription delivers: its window, its retries, and what happens to poison messages."""

from __future__ import annotations

from dataclasses import dataclass

from frazil.core.backoff import backoff
from frazil.core.settings.broker import Backoff, BrokerSettings, Poison

__all__ = ["Backoff", "DeliveryPolicy"]


@dataclass(frozen=True, slots=True)
class DeliveryPolicy:
    """`window_max` and `window_bytes_max` bound the messages that are delivered and not acknowledged. One message may
    always be delivered, however large it is."""

    window_max: int = 10
    window_bytes_max: int = 64 * 1024 * 1024
    ack_timeout_us: int = 30_000_000
    redeliveries_max: int = 5
    delay_us: int = 1_000_000
    delay_us_max: int = 60_000_000
    backoff: Backoff = Backoff.EXPONENTIAL
    poison: Poison = Poison.BLOCK
    dead_letter_topic: str | None = None
    """None: the topic's name with `-dead-letter`."""

    @classmethod
    def of(cls, settings: BrokerSettings) -> DeliveryPolicy:
        """Return the default policy of a broker's subscriptions."""
        return cls(
            window_max=settings.max_unacked_messages,
            window_bytes_max=settings.max_unacked_bytes,
            ack_timeout_us=settings.ack_timeout_ms * 1_000,
            redeliveries_max=settings.redeliveries_max,
            delay_us=settings.redelivery_delay_ms * 1_000,
            delay_us_max=settings.redelivery_delay_ms_max * 1_000,
            backoff=settings.backoff,
            poison=settings.poison,
        )

    @property
    def attempts_max(self) -> int:
        """Maximum deliveries of one message, including the first."""
        return self.redeliveries_max + 1

    def retry_delay_us(self, attempts: int, wanted_us: int | None = None) -> int:
        """Delay after that many failed attempts: the consumer's request, or the back-off; never above the limit."""
        if wanted_us is not None:
            return min(wanted_us, self.delay_us_max)
        failures = attempts if self.backoff is Backoff.EXPONENTIAL else 1
        return backoff(failures, first=self.delay_us, limit=self.delay_us_max)
