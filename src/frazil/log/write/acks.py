"""Ack levels of topics: which one a new topic gets, and what each means for its files."""

from __future__ import annotations

from frazil.core.errors import InvalidInput
from frazil.core.settings import AckLevel, Settings, SyncMode, WalSettings


def parse_ack(value: str) -> AckLevel:
    """Return the level of that name, or raise `InvalidInput`."""
    try:
        return AckLevel(value)
    except ValueError:
        names = ", ".join(level.value for level in AckLevel)
        raise InvalidInput(f"ack: {value!r} is not one of {names}", field="ack") from None


def ack_of_new_topic(settings: Settings, wanted: str | None) -> AckLevel:
    """Return the level of a new topic: the one given, or that of the settings."""
    level = settings.wal.ack if wanted is None else parse_ack(wanted)
    if level is AckLevel.OBJECT and not settings.objects.enabled:
        raise InvalidInput("ack: the level object needs objects.enabled: true in the settings", field="ack")
    return level


def sync_mode_of(settings: WalSettings, level: AckLevel) -> SyncMode:
    """Return when the files of a topic are synced. Only with the level `disk` an acknowledgement waits for that."""
    return settings.sync_mode if level is AckLevel.DISK else SyncMode.NONE
