"""The verbs by name, each imported on use.

Shell completion, and a verb that only asks a server, must not wait for the imports of other verbs. So verbs are looked
up here by name, and their modules import at the top only what is fast. PyArrow, Pydantic, rich, and the parts of Frazil
that need them, are imported where they are used; `tests/unit/cli/test_start.py` checks it.
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
    "namespaces": "frazil.cli.broker.namespaces:app",
    "subscriptions": "frazil.cli.broker.subscriptions:app",
    "producers": "frazil.cli.broker.clients:producers_app",
    "consumers": "frazil.cli.broker.clients:consumers_app",
    "dead-letters": "frazil.cli.broker.dead_letters:app",
    "schemas": "frazil.cli.broker.schemas:app",
    "brokers": "frazil.cli.cluster.brokers:app",
    "keys": "frazil.cli.security.keys:app",
    "roles": "frazil.cli.security.roles:app",
    "bindings": "frazil.cli.security.bindings:app",
    "tenants": "frazil.cli.telemetry.tenants:app",
    "traces": "frazil.cli.telemetry.traces:app",
    "logs": "frazil.cli.telemetry.logs:app",
    "metrics": "frazil.cli.telemetry.metrics:app",
    "telemetry": "frazil.cli.telemetry.errors:app",
    "log": "frazil.cli.log:app",
    "pipeline": "frazil.cli.pipeline:app",
    "table": "frazil.cli.table:app",
    "sql": "frazil.cli.sql:sql",
    "verify": "frazil.cli.verify:verify",
    "restore": "frazil.cli.restore:restore",
    "top": "frazil.cli.top:top",
    "doctor": "frazil.cli.doctor:doctor",
    "serve": "frazil.cli.serve:serve",
    "certs": "frazil.cli.security.certs:app",
    "generate": "frazil.cli.generate:app",
    "version": "frazil.cli.version:version",
}


class Verbs(TyperGroup):
    """The Typer group of all verbs."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - Typer's
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - Typer's
        """For an unknown name, load all verbs, so that Typer can suggest similar ones."""
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
