"""The policy of one subscription: its own fields, over the defaults of the broker.

Only the fields that were set are stored with the subscription. A record without a policy, or without a field, has the
default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from frazil.broker.delivery.policy import DeliveryPolicy
from frazil.core.errors import InvalidInput
from frazil.core.names import TopicName
from frazil.core.settings.broker import Backoff, Poison

DAY_MS = 24 * 60 * 60 * 1_000


class Bounds(NamedTuple):
    min: int
    max: int


MESSAGES, BYTES = Bounds(1, 10_000), Bounds(1, 2**30)
ACK_TIMEOUT_MS, DELAY_MS = Bounds(1, DAY_MS), Bounds(1, DAY_MS)
REDELIVERIES = Bounds(0, 1_000_000)
BOUNDS = {
    "max_unacked_messages": MESSAGES,
    "max_unacked_bytes": BYTES,
    "ack_timeout_ms": ACK_TIMEOUT_MS,
    "redeliveries_max": REDELIVERIES,
    "redelivery_delay_ms": DELAY_MS,
    "redelivery_delay_ms_max": DELAY_MS,
}


@dataclass(frozen=True, slots=True)
class OwnPolicy:
    """None means the broker's default. Names and units are those of the broker's settings."""

    max_unacked_messages: int | None = None
    max_unacked_bytes: int | None = None
    ack_timeout_ms: int | None = None
    redeliveries_max: int | None = None
    redelivery_delay_ms: int | None = None
    redelivery_delay_ms_max: int | None = None
    backoff: Backoff | None = None
    poison: Poison | None = None
    dead_letter_topic: str | None = None

    @classmethod
    def restored(cls, stored: Mapping[str, Any] | None) -> OwnPolicy:
        """Raises `InvalidInput` for an invalid record."""
        given = {name: value for name, value in (stored or {}).items() if name in cls.__dataclass_fields__}
        for name, kind in (("backoff", Backoff), ("poison", Poison)):
            if name in given:
                given[name] = _chosen(name, given[name], kind)
        made = cls(**given)
        made._check_bounds()
        return made

    def stored(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def sends_letters(self) -> bool:
        """Whether it, and not the broker's settings alone, has dead letters published."""
        return self.poison is Poison.DEAD_LETTER or self.dead_letter_topic is not None

    def over(self, defaults: DeliveryPolicy) -> DeliveryPolicy:
        """Return the effective policy. Subscriptions without their own policy share the defaults."""
        if self == _NOTHING_SET:
            return defaults
        wanted: dict[str, Any] = {
            "window_max": self.max_unacked_messages,
            "window_bytes_max": self.max_unacked_bytes,
            "ack_timeout_us": _us(self.ack_timeout_ms),
            "redeliveries_max": self.redeliveries_max,
            "delay_us": _us(self.redelivery_delay_ms),
            "delay_us_max": _us(self.redelivery_delay_ms_max),
            "backoff": self.backoff,
            "poison": self.poison,
            "dead_letter_topic": self.dead_letter_topic,
        }
        return replace(defaults, **{name: value for name, value in wanted.items() if value is not None})

    def check(self, topic: TopicName, defaults: DeliveryPolicy) -> None:
        """Raise `InvalidInput` that names the field and its limit."""
        self._check_bounds()
        holds = self.over(defaults)
        is_set = self.redelivery_delay_ms is not None or self.redelivery_delay_ms_max is not None
        if is_set and holds.delay_us > holds.delay_us_max:
            limit = holds.delay_us_max // 1_000
            raise InvalidInput(
                f"redelivery_delay_ms: must not be above redelivery_delay_ms_max = {limit}",
                field="redelivery_delay_ms",
                limit=limit,
            )
        if (
            self.dead_letter_topic is not None
            and _letters(self.dead_letter_topic).partition_of()[0] == (topic.partition_of()[0])
        ):
            raise InvalidInput(
                f"dead_letter_topic: must not be {topic} itself, whose dead letters it would take",
                field="dead_letter_topic",
            )

    def _check_bounds(self) -> None:
        for field, (low, high) in BOUNDS.items():
            value = getattr(self, field)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise InvalidInput(f"{field}: must be {low} to {high}, not {value!r:.40}", field=field, limit=high)
        if self.dead_letter_topic is not None:
            _letters(self.dead_letter_topic)


_NOTHING_SET = OwnPolicy()


def shown(policy: DeliveryPolicy) -> dict[str, Any]:
    """Return a policy by its public field names."""
    return {
        "max_unacked_messages": policy.window_max,
        "max_unacked_bytes": policy.window_bytes_max,
        "ack_timeout_ms": policy.ack_timeout_us // 1_000,
        "redeliveries_max": policy.redeliveries_max,
        "redelivery_delay_ms": policy.delay_us // 1_000,
        "redelivery_delay_ms_max": policy.delay_us_max // 1_000,
        "backoff": str(policy.backoff),
        "poison": str(policy.poison),
        "dead_letter_topic": policy.dead_letter_topic,
    }


def _letters(name: str) -> TopicName:
    try:
        return TopicName.parse(name)
    except InvalidInput as error:
        raise InvalidInput(f"dead_letter_topic: {error.message}", field="dead_letter_topic") from None


def _chosen(name: str, value: Any, kind: type[Backoff | Poison]) -> Backoff | Poison:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(kind)
        raise InvalidInput(f"{name}: must be one of {known}, not {value!r:.40}", field=name) from None


def _us(ms: int | None) -> int | None:
    return None if ms is None else ms * 1_000
