"""How messages are delivered: how many at once, how long an acknowledgement may take, what becomes of those that
nobody acknowledges."""

from __future__ import annotations

from dataclasses import dataclass

from frazil.core.broker_settings import BrokerSettings, Poison


@dataclass(frozen=True, slots=True)
class DeliveryRules:
    unacked_max: int
    ack_timeout_us: int
    redeliveries_max: int
    delay_us: int
    delay_us_max: int
    poison: Poison

    @classmethod
    def of(cls, settings: BrokerSettings) -> DeliveryRules:
        return cls(
            settings.max_unacked_messages,
            settings.ack_timeout_ms * 1_000,
            settings.redeliveries_max,
            settings.redelivery_delay_ms * 1_000,
            settings.redelivery_delay_ms_max * 1_000,
            settings.poison,
        )

    def delay_after_us(self, redeliveries: int, wanted_us: int | None = None) -> int:
        """How long a message rests before it is delivered again: as its consumer wants, else doubling; capped."""
        own_us = self.delay_us << min(redeliveries, 32) if wanted_us is None else wanted_us
        return min(own_us, self.delay_us_max)
