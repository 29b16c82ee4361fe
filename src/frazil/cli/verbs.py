"""The verbs by name, each imported when it is asked for.

A shell that completes a word, and a verb that only asks a server, must not wait for what other verbs stand on. So
verbs are looked up here by name, and their modules import at the top only what takes no time. PyArrow, Pydantic, rich,
and what of Frazil needs them, are imported where they are used; `tests/unit/cli/test_start.py` keeps it so.
"""

from __future__ import annotations

import pkgutil
from typing import Any

import typer
import typer.main
from typer.core import TyperGroup

VERBS = {
    "topics": "frazil.cli.topics:app",
    "produce": "frazil.cli.produce:produce",
    "consume": "frazil.cli.consume:consume",
    "namespaces": "frazil.cli.namespaces:app",
    "subscriptions": "frazil.cli.subscriptions:app",
    "producers": "frazil.cli.clients:producers_app",
    "consumers": "frazil.cli.clients:consumers_app",
    "dead-letters": "frazil.cli.dead_letters:app",
    "schemas": "frazil.cli.schemas:app",
    "log": "frazil.cli.log:app",
    "pipeline": "frazil.cli.pipeline:app",
    "table": "frazil.cli.table:app",
    "sql": "frazil.cli.sql:sql",
    "verify": "frazil.cli.verify:verify",
    "top": "frazil.cli.top:top",
    "doctor": "frazil.cli.doctor:doctor",
    "serve": "frazil.cli.serve:serve",
    "generate": "frazil.cli.generate:app",
    "version": "frazil.cli.version:version",
}


class Verbs(TyperGroup):
    """What Typer takes for a group of all the verbs."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - Typer's
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - Typer's
        """Of a name that is wrong Typer says which ones are near, and then it must know them all."""
        for name in [cmd_name] if cmd_name in VERBS else VERBS:
            if name not in self.commands:
                self.commands[name] = _imported(name)
        return self.commands.get(cmd_name)


def _imported(name: str) -> Any:
    verb, group = pkgutil.resolve_name(VERBS[name]), typer.Typer()
    if isinstance(verb, typer.Typer):
        group.add_typer(verb, name=name)
    else:
        group.command(name)(verb)
    return typer.main.get_group(group).commands[name]
