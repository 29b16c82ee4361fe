"""Options that every verb has, so that each is spelled once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from frazil.core.disk import LocalDisk
from frazil.core.errors import InvalidSettings, TopicNotFound
from frazil.core.names import TopicName
from frazil.core.settings import Settings, resolve_settings
from frazil.log.survey import topic_names

Data = Annotated[
    Path | None,
    typer.Option("--data", metavar="FOLDER", help="The data folder (or FRAZIL_DATA; default: frazil-data)."),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="A YAML file with settings (or FRAZIL_CONFIG)."),
]
Server = Annotated[
    str | None,
    typer.Option("--server", metavar="URL", help="Ask this server (or FRAZIL_SERVER; default: the folder's owner)."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
WhileStdin = Annotated[bool, typer.Option("--while-stdin", hidden=True)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="As /namespace/topic.")]


def settings_on_disk(data: Path | None, config: Path | None) -> Settings:
    """The settings of a verb; each works on a folder, so one must be named."""
    settings = resolve_settings(data, config)
    if settings.data is None:
        raise InvalidSettings("data: the settings name no data folder, and a command needs one; give --data")
    return settings


def check_exists(settings: Settings, topic: str) -> None:
    """Refuse before a folder is made or locked for a topic that is not there."""
    if TopicName.parse(topic) not in topic_names(LocalDisk(), settings.log_folder):
        raise TopicNotFound(topic)
