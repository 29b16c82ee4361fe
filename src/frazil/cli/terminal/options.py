"""Options shared by all verbs, each defined once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from frazil.cli.target.folder import check_exists as check_exists
from frazil.cli.target.folder import settings_on_disk as settings_on_disk
from frazil.cli.terminal import completion

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
ProgressJson = Annotated[bool, typer.Option("--progress-json", hidden=True)]
WhileStdin = Annotated[bool, typer.Option("--while-stdin", hidden=True)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
TopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="As /namespace/topic.", autocompletion=completion.topics)
]
TopicOrAll = Annotated[
    str | None, typer.Argument(metavar="[TOPIC]", help="One topic; all if none.", autocompletion=completion.topics)
]
SubscriptionArgument = Annotated[
    str, typer.Argument(metavar="SUBSCRIPTION", help="Its name.", autocompletion=completion.subscriptions)
]
