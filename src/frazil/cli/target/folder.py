"""The data folder of a verb."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from frazil.core.disk import LocalDisk
from frazil.core.errors import InvalidSettings
from frazil.core.names import TopicName
from frazil.core.partitions import topic_not_found
from frazil.log.folder.layout import topic_names

if TYPE_CHECKING:
    from frazil.core.settings import Settings


def settings_on_disk(data: Path | None, config: Path | None) -> Settings:
    """Return the settings of a verb; each needs a data folder."""
    from frazil.core.settings import resolve_settings

    settings = resolve_settings(data, config)
    if settings.data is None:
        raise InvalidSettings("data: the settings name no data folder, and a command needs one; give --data")
    return settings


def check_exists(settings: Settings, topic: str) -> None:
    """Refuse a missing topic before a folder is created or locked."""
    name, there = TopicName.parse(topic), topic_names(LocalDisk(), settings.log_folder)
    if name not in there:
        raise topic_not_found(name, there)
