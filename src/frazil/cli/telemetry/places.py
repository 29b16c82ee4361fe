"""The dataset of a verb, its topics and tables, and what its options stand for in SQL."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from frazil.cli.target.tenants import open_tenants
from frazil.cli.terminal.positions import parse_time
from frazil.cli.terminal.quantities import parse_duration_ms
from frazil.core.clock import SystemClock
from frazil.core.errors import InvalidInput

if TYPE_CHECKING:
    from frazil.telemetry.signals import Signal

DEFAULT_TENANT = DEFAULT_DATASET = "default"
NAMED_MAX = 5
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

Tenant = Annotated[
    str | None, typer.Option("--tenant", metavar="NAME", help="Needed if you may see several.", show_default=False)
]
Dataset = Annotated[str, typer.Option("--dataset", metavar="NAME", help="The dataset of the tenant.")]
Since = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="1h for the last hour, or @TIME in ISO 8601.")
]


class DatasetPlace(NamedTuple):
    """The dataset of a tenant. Its names were checked."""

    tenant: str
    dataset: str

    def topic(self, signal: Signal) -> str:
        from frazil.telemetry.signals import topic_of_signal

        return str(topic_of_signal(self.tenant, self.dataset, signal))

    def table(self, name: str) -> str:
        """Return the name of a table in SQL."""
        from frazil.node.query.relation import quoted

        return f"{quoted(f'{self.tenant}.{self.dataset}')}.{quoted(name)}"


def find_place(
    tenant: str | None, dataset: str, server: str | None, data: Path | None, config: Path | None
) -> DatasetPlace:
    """Return the named tenant, else the only one that the caller sees."""
    from frazil.telemetry.signals import check_name

    name = _only_tenant(server, data, config) if tenant is None else tenant
    check_name(name, "tenant")
    check_name(dataset, "dataset")
    return DatasetPlace(name, dataset)


def _only_tenant(server: str | None, data: Path | None, config: Path | None) -> str:
    with open_tenants(server, data, config) as tenants:
        found = sorted(one["tenant"] for one in tenants.list())
    others = [name for name in found if not name.startswith("_")]
    if len(others) > 1:
        named = ", ".join(others[:NAMED_MAX]) + (" …" if len(others) > NAMED_MAX else "")
        raise InvalidInput(f"--tenant: name one of {named}", field="tenant")
    return others[0] if others else DEFAULT_TENANT


def parse_since(text: str | None) -> datetime | None:
    """Parse a time, or how long ago it was."""
    if text is None:
        return None
    if text.startswith("@"):
        return parse_time(text[1:], "--since")
    try:
        return _EPOCH + timedelta(microseconds=SystemClock().now_us() - parse_duration_ms(text, "--since") * 1_000)
    except OverflowError:
        raise InvalidInput(f"--since: {text!r} is too long ago", option="--since") from None


def literal(text: str) -> str:
    """Return a text as SQL has it."""
    from frazil.node.query.relation import text as quoted_text

    if "\0" in text:
        raise InvalidInput("a text with a zero byte is in no record")
    return quoted_text(text)


def time_literal(time: datetime) -> str:
    return f"TIMESTAMPTZ {literal(time.isoformat())}"
