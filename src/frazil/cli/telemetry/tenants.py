"""`frazil tenants`: create, list, show, limit and delete tenants, and rotate their keys.

Asks the server, or works on the folder if none runs.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from frazil.cli.target.tenants import Tenants, open_tenants
from frazil.cli.telemetry import tenant_options as setting
from frazil.cli.telemetry.tenant_options import given_settings
from frazil.cli.terminal import options, output
from frazil.cli.terminal.quantities import parse_duration_ms
from frazil.core.errors import InvalidInput, TryLater

app = typer.Typer(no_args_is_help=True, help="Create, list, limit and delete tenants of telemetry.")

TenantArgument = Annotated[str, typer.Argument(metavar="TENANT", help="Its name: a-z 0-9 _ and -.")]
IDLE_ROUNDS_MAX = 3
"""A deletion ends without success if so many calls in a row change nothing."""


@app.command("list")
def list_(
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """List tenants with their datasets and what limits them."""
    with open_tenants(server, data, config) as tenants:
        found = tenants.list()
    if as_json:
        output.print_json(found)
    elif not found:
        output.say("there are no tenants; see frazil tenants create --help")
    else:
        shown = [
            one["effective"]["limits"]
            | {"tenant": one["tenant"], "datasets": len(one["datasets"]), "created": _created(one)}
            for one in found
        ]
        limits = ("requests_per_second", "bytes_per_second", "stored_bytes")
        output.print_dicts(("tenant", "datasets", *limits, "created"), shown, right=("datasets", *limits))


@app.command()
def show(
    tenant: TenantArgument,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Show a tenant: its datasets, its settings and what applies, and the ids of its keys."""
    with open_tenants(server, data, config) as tenants:
        found = tenants.show(tenant)
    _print_tenant(found, as_json)


@app.command()
def create(
    tenant: TenantArgument,
    requests_per_second: setting.Requests = None,
    bytes_per_second: setting.Bytes = None,
    connections: setting.Connections = None,
    stored_bytes: setting.Stored = None,
    datasets: setting.Datasets = None,
    tables: setting.Tables = None,
    retention_age: setting.RetentionAge = None,
    retention_bytes: setting.RetentionBytes = None,
    freshness: setting.Freshness = None,
    target_file_size: setting.FileSize = None,
    lift: setting.Lift = None,
    no_key: Annotated[bool, typer.Option("--no-key", help="Make no API key.")] = False,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Create a tenant. With security on, print its API key, which is shown only once."""
    given = given_settings(
        requests_per_second=requests_per_second, bytes_per_second=bytes_per_second, connections=connections,
        stored_bytes=stored_bytes, datasets=datasets, tables=tables, retention_age=retention_age,
        retention_bytes=retention_bytes, freshness=freshness, target_file_size=target_file_size, lift=lift,
    )  # fmt: skip
    with open_tenants(server, data, config) as tenants:
        made = tenants.create(tenant, given, with_key=not no_key)
    key = made["key"]
    if as_json:
        output.print_json(made)
    elif key is None:
        print(f"created tenant {tenant}")
    else:
        print(key["key"])
        output.say(f"created tenant {tenant}; keep its key: it is shown only once")


@app.command()
def limit(
    tenant: TenantArgument,
    requests_per_second: setting.Requests = None,
    bytes_per_second: setting.Bytes = None,
    connections: setting.Connections = None,
    stored_bytes: setting.Stored = None,
    datasets: setting.Datasets = None,
    tables: setting.Tables = None,
    retention_age: setting.RetentionAge = None,
    retention_bytes: setting.RetentionBytes = None,
    freshness: setting.Freshness = None,
    target_file_size: setting.FileSize = None,
    lift: setting.Lift = None,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Change what applies to a tenant; what is not given stays. Effective within a second."""
    given = given_settings(
        requests_per_second=requests_per_second, bytes_per_second=bytes_per_second, connections=connections,
        stored_bytes=stored_bytes, datasets=datasets, tables=tables, retention_age=retention_age,
        retention_bytes=retention_bytes, freshness=freshness, target_file_size=target_file_size, lift=lift,
    )  # fmt: skip
    if not given:
        raise InvalidInput("nothing is changed: give an option, or see `frazil tenants show`")
    with open_tenants(server, data, config) as tenants:
        found = tenants.change(tenant, given)
    _print_tenant(found, as_json)


@app.command("rotate-key")
def rotate_key(
    tenant: TenantArgument,
    key_id: Annotated[str | None, typer.Option("--key", metavar="ID", help="Which one, if it has several.")] = None,
    overlap: Annotated[
        str | None, typer.Option("--overlap", metavar="TIME", help="The old secret stays valid this long, as 1d.")
    ] = None,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Give the key of a tenant a new secret and print the key; a tenant without a key gets one."""
    overlap_ms = 0 if overlap is None else parse_duration_ms(overlap, "--overlap")
    with open_tenants(server, data, config) as tenants:
        made = tenants.rotate_key(tenant, key_id, overlap_ms)
    if as_json:
        output.print_json(made)
    else:
        print(made["key"])
    output.say("keep the key: it is shown only once")


@app.command()
def delete(
    tenant: TenantArgument,
    yes: options.Yes = False,
    force: Annotated[bool, typer.Option("--force", help="Even if its topics have subscriptions or producers.")] = False,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Delete a tenant with all its data, permanently: topics, tables with their files, objects, keys and bindings."""
    with open_tenants(server, data, config) as tenants:
        found = tenants.show(tenant)
        if not yes:
            count = output.plural(len(found["datasets"]), "dataset")
            typer.confirm(f"Delete {tenant} with {count}, all its topics and tables for good?", abort=True, err=True)
        report = _deleted(tenants, tenant, force=force)
    if as_json:
        output.print_json(report)
    elif report["done"]:
        files = sum(one["files"] for one in report["tables"])
        print(
            f"deleted tenant {tenant}: {output.plural(len(report['topics']), 'topic')}, "
            f"{output.plural(len(report['tables']), 'table')} with {output.plural(files, 'file')}, "
            f"{output.plural(len(report['keys']), 'key')}; nothing is left"
        )
    if not report["done"]:
        left = ", ".join(report["left"][:3])
        raise TryLater(
            f"{tenant} is not deleted yet: {len(report['left'])} thing(s) are left, as {left}; run it again",
            tenant=tenant,
            left=report["left"],
        )


def _deleted(tenants: Tenants, tenant: str, *, force: bool) -> dict[str, Any]:
    """Go on until it is done, or until nothing changes any more."""
    report, idle = tenants.delete(tenant, force=force), 0
    while not report["done"] and idle < IDLE_ROUNDS_MAX:
        output.say(f"{len(report['left'])} thing(s) are left, as {report['left'][0]}")
        before, report = report, tenants.delete(tenant, force=force)
        idle = idle + 1 if report == before else 0
    return report


def _created(found: dict[str, Any]) -> str:
    return output.time_shown(found["created_us"])


def _print_tenant(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        output.print_json(found)
        return
    effective, retention = found["effective"], found["retention"] or {}
    lifted = [f"{one['source']}:{one['key']}={one['column']}:{one['type']}" for one in found["lifted"]]
    limits = {name: value for name, value in effective["limits"].items() if name != "datasets"}
    facts = {
        "tenant": found["tenant"],
        "created": _created(found),
        "being deleted": found["deleting"],
        "datasets": found["datasets"],
        "datasets_max": effective["limits"]["datasets"],
        **limits,
        "retention age ms": retention.get("age_ms"),
        "retention bytes": retention.get("bytes"),
        "freshness ms": effective["freshness_ms"],
        "target file bytes": effective["target_file_bytes"],
        "lifted": lifted,
        "keys": found["keys"],
    }
    output.print_facts(facts)
