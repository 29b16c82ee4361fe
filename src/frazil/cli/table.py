"""`frazil table`: look at the tables, and keep them: compact, expire, remove orphans.

`frazil.pipeline` is imported inside the verbs: Spark and PyIceberg take longer to import than most verbs to run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli import options, output
from frazil.cli.quantities import parse_duration_ms
from frazil.cli.server import find_server
from frazil.cli.with_parent import end_with_stdin
from frazil.core.clock import SystemClock
from frazil.core.errors import FrazilError, LakeUnavailable
from frazil.core.names import TopicName

if TYPE_CHECKING:
    from frazil.core.settings import Settings
    from frazil.lake.tables import TableName
    from frazil.lake.upkeep import Upkeep

app = typer.Typer(no_args_is_help=True, help="Look at the tables, and keep them small and quick.")

Master = Annotated[str | None, typer.Option("--master", help="A Spark master; default: Spark within.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Tell what would be done, and do nothing.")]
WithOrphans = Annotated[bool, typer.Option("--orphans/--no-orphans", help="Look for stray files as well.")]
OlderThan = Annotated[str | None, typer.Option("--older-than", metavar="SPAN", help="As 36h or 7d.")]


@app.command("list")
def list_verb(
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Show all tables: rows, files, snapshots, the last commit, and how far they have each log."""
    asked = find_server(server, data, config)
    if asked is not None:
        found = asked.all("/v1/tables")
    else:
        upkeep = _upkeep(options.settings_on_disk(data, config))
        found = [upkeep.summary(name).as_dict() for name in upkeep.names()]
    if as_json:
        output.print_json(found)
        return
    headings = ("table", "rows", "files", "size", "snapshots", "last commit", "log ends")
    rows = [
        (
            one["table"],
            one["rows"],
            one["files"],
            output.bytes_shown(one["bytes"]),
            one["snapshots"],
            output.time_shown(None if one["committed_ms"] is None else one["committed_ms"] * 1_000),
            " ".join(str(end) for end in one["ends"].values()),
        )
        for one in found
    ]
    if rows:
        output.print_table(headings, rows, right=headings[1:5])


@app.command()
def describe(
    topic: options.TopicArgument,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Show one table: columns, partitioning, properties, snapshots, and the files of each partition."""
    asked = find_server(server, data, config)
    if asked is not None:
        name = TopicName.parse(topic)
        found = asked.get(f"/v1/tables/{name.namespace}/{name.topic}")
    else:
        upkeep = _upkeep(options.settings_on_disk(data, config))
        found = upkeep.description(upkeep.names(topic)[0])
    if as_json:
        output.print_json(found)
        return
    names = ("table", "location", "rows", "files", "bytes", "partitioning")
    output.print_pairs((name, found[name]) for name in names)
    _print_rows("columns", found["columns"])
    _print_rows("properties", [{"name": name, "value": value} for name, value in sorted(found["properties"].items())])
    _print_rows("snapshots", found["history"])
    _print_rows("partitions", found["partitions"])


@app.command()
def compact(
    topic: options.TopicOrAll = None,
    dry_run: DryRun = False,
    master: Master = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Join small files into few, with the rows in the order of their offsets. The mover may run meanwhile."""
    settings = options.settings_on_disk(data, config)
    upkeep = _upkeep(settings)
    names = upkeep.names(topic)
    if dry_run:
        plans = [(str(name), upkeep.compaction(name)) for name in names]
        told: list[dict[str, Any]] = [
            {"table": name, "files": plan.files, "bytes": plan.bytes, "partitions": plan.partitions, "dry_run": True}
            for name, plan in plans
        ]
        _print_results(told, as_json)
        return
    from frazil.pipeline.maintenance import open_maintenance

    with open_maintenance(settings, master) as maintenance:
        _each(names, "compacting", lambda name: maintenance.compact(name).as_dict(), as_json)


@app.command()
def expire(
    topic: options.TopicOrAll = None,
    older_than: OlderThan = None,
    keep: Annotated[int | None, typer.Option("--keep", min=1, help="So many snapshots stay, however old.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Allow less than an hour.")] = False,
    dry_run: DryRun = False,
    master: Master = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Forget old snapshots, and delete the files that only they needed. Rows are never touched."""
    settings = options.settings_on_disk(data, config)
    upkeep = _upkeep(settings)
    from frazil.pipeline.maintenance import check_expiry_age, open_maintenance

    age_ms, now_ms = _span(older_than), SystemClock().now_us() // 1_000
    check_expiry_age(age_ms, force=force)
    kept = settings.maintenance.snapshots_min if keep is None else keep
    names = upkeep.names(topic)

    def before_ms(name: TableName) -> int:
        return upkeep.expires_before_ms(name, now_ms) if age_ms is None else now_ms - age_ms

    if dry_run:
        found = [(str(name), upkeep.expiring(name, before_ms(name), kept)) for name in names]
        _print_results([{"table": name, "snapshots": len(ids), "dry_run": True} for name, ids in found], as_json)
        return
    with open_maintenance(settings, master) as maintenance:
        _each(names, "expiring", lambda name: maintenance.expire(name, before_ms(name), kept).as_dict(), as_json)


@app.command()
def orphans(
    topic: options.TopicOrAll = None,
    older_than: OlderThan = None,
    dry_run: DryRun = False,
    master: Master = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Remove files that no snapshot knows of, as a crash may leave them. At least a day old: see the settings."""
    settings = options.settings_on_disk(data, config)
    upkeep = _upkeep(settings)
    from frazil.pipeline.maintenance import open_maintenance, orphan_before_ms

    before_ms = orphan_before_ms(settings, SystemClock(), _span(older_than))
    names = upkeep.names(topic)

    def remove(name: TableName) -> dict[str, Any]:
        found = maintenance.orphans(name, before_ms, dry_run=dry_run)
        if not as_json:
            for path in found.files:
                output.say(path)
        return found.as_dict() if as_json else {**found.as_dict(), "files": len(found.files)}

    with open_maintenance(settings, master) as maintenance:
        _each(names, "looking for orphans of", remove, as_json)


@app.command()
def maintain(
    topic: options.TopicOrAll = None,
    orphans: WithOrphans = True,
    dry_run: DryRun = False,
    master: Master = None,
    while_stdin: options.WhileStdin = False,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Compact, expire and remove orphans where it is due, by the settings. The mover has this done now and then."""
    if while_stdin:
        end_with_stdin()
    settings = options.settings_on_disk(data, config)
    upkeep, clock = _upkeep(settings), SystemClock()
    from frazil.pipeline.keeping import Kept, Round
    from frazil.pipeline.maintenance import open_maintenance, orphan_before_ms

    before_ms = orphan_before_ms(settings, clock, None) if orphans else None
    keeping = Round(upkeep, clock.now_us() // 1_000, before_ms, settings.maintenance.snapshots_min)
    dues = [keeping.due(name) for name in upkeep.names(topic)]
    if dry_run:
        _print_results([due.as_dict() for due in dues], as_json)
        return
    results = [Kept(str(due.name), error=due.error).as_dict() for due in dues if not due]
    if any(dues):
        with open_maintenance(settings, master) as maintenance:
            for due in filter(None, dues):
                output.say(f"keeping {due.name}")
                results.append(keeping.keep(maintenance, due).as_dict())
    _print_results(results, as_json)
    if any(one["error"] for one in results):
        raise typer.Exit(1)


def _upkeep(settings: Settings) -> Upkeep:
    try:
        from frazil.lake.upkeep import Upkeep
    except ModuleNotFoundError as error:
        raise LakeUnavailable("catalog", f"{error.name} is not installed: install frazil[lake]") from None
    return Upkeep(settings)


def _span(text: str | None) -> int | None:
    return None if text is None else parse_duration_ms(text, "--older-than")


def _each(names: Sequence[TableName], doing: str, do: Callable[[TableName], dict[str, Any]], as_json: bool) -> None:
    """One table after the other; one that fails does not keep the others from it."""
    results = []
    failed: list[FrazilError] = []
    for name in names:
        output.say(f"{doing} {name}")
        try:
            results.append(do(name))
        except FrazilError as error:
            if len(names) == 1:
                raise
            failed.append(error)
            output.say(f"{name}: {error.message}")
    _print_results(results, as_json)
    if failed:
        raise typer.Exit(1)


def _print_results(results: Sequence[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        output.print_json(results)
    elif results:
        headings = tuple(results[0])
        output.print_table([each.replace("_", " ") for each in headings], [tuple(one.values()) for one in results])


def _print_rows(title: str, rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        print(f"\n{title}")
        output.print_table([each.replace("_", " ") for each in rows[0]], [tuple(row.values()) for row in rows])
