"""`frazil table`: inspect tables and maintain them: compact, expire, remove orphans. Uses a server if one runs.

Verbs import `frazil.pipeline` inside their functions: importing Spark and PyIceberg takes longer than most verbs run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.target.jobs import run_job
from frazil.cli.target.server import Server, find_server, named_server
from frazil.cli.target.with_parent import end_with_stdin
from frazil.cli.terminal import options, output
from frazil.cli.terminal.progress import JsonProgress, counter
from frazil.cli.terminal.quantities import parse_duration_ms
from frazil.core.clock import SystemClock
from frazil.core.errors import FrazilError, InvalidInput
from frazil.core.extras import needs
from frazil.core.names import TopicName

if TYPE_CHECKING:
    from frazil.core.settings import Settings
    from frazil.lake.maintenance.table_inspection import TableInspector
    from frazil.lake.tables.schema import TableName
    from frazil.pipeline.maintenance.procedures import Maintenance

app = typer.Typer(no_args_is_help=True, help="Show tables and maintain them.")

Master = Annotated[str | None, typer.Option("--master", help="A Spark master; default: embedded Spark.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")]
WithOrphans = Annotated[bool, typer.Option("--orphans/--no-orphans", help="Remove orphan files as well.")]
OlderThan = Annotated[str | None, typer.Option("--older-than", metavar="SPAN", help="As 36h or 7d.")]


@app.command("list")
def list_verb(
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Show all tables: rows, files, snapshots, the last commit, and the committed offset of each log."""
    asked = find_server(server, data, config)
    if asked is not None:
        found = asked.all("/v1/tables")
    else:
        inspector = _inspector(options.settings_on_disk(data, config))
        found = [inspector.summary(name).as_dict() for name in inspector.names()]
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
        inspector = _inspector(options.settings_on_disk(data, config))
        found = inspector.description(inspector.names(topic)[0])
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
    while_stdin: options.WhileStdin = False,
    progress_json: options.ProgressJson = False,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Merge small files, with the rows in offset order. The mover may run at the same time."""
    asked = _asked(server, data, config, master, while_stdin)
    if asked is not None:
        _print_done(_by_server(asked, "compact", topic, dry_run=dry_run), as_json)
        return
    settings = options.settings_on_disk(data, config)
    inspector = _inspector(settings)
    names = inspector.names(topic)
    if dry_run:
        plans = [(str(name), inspector.compaction(name)) for name in names]
        listed: list[dict[str, Any]] = [
            {"table": name, "files": plan.files, "bytes": plan.bytes, "partitions": plan.partitions, "dry_run": True}
            for name, plan in plans
        ]
        _print_done(Done(listed), as_json, progress_json)
        return
    keep = _MaintenanceRun(settings, master, progress_json)
    _print_done(keep.each(names, "compacting", lambda by, name: by.compact(name).as_dict()), as_json, progress_json)


@app.command()
def expire(
    topic: options.TopicOrAll = None,
    older_than: OlderThan = None,
    keep: Annotated[
        int | None, typer.Option("--keep", min=1, help="Keep this many snapshots, whatever their age.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Allow less than an hour.")] = False,
    dry_run: DryRun = False,
    master: Master = None,
    while_stdin: options.WhileStdin = False,
    progress_json: options.ProgressJson = False,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Expire old snapshots, and delete the files that only they needed. Rows are never touched."""
    asked = _asked(server, data, config, master, while_stdin)
    age_ms, now_ms = _span(older_than), SystemClock().now_us() // 1_000
    if asked is not None:
        given = {"older_than_ms": age_ms, "keep": keep, "force": force, "dry_run": dry_run}
        _print_done(_by_server(asked, "expire", topic, **given), as_json)
        return
    settings = options.settings_on_disk(data, config)
    inspector = _inspector(settings)
    from frazil.pipeline.maintenance.procedures import check_expiry_age

    check_expiry_age(age_ms, force=force)
    kept = settings.maintenance.snapshots_min if keep is None else keep
    names = inspector.names(topic)

    def before_ms(name: TableName) -> int:
        return inspector.expires_before_ms(name, now_ms) if age_ms is None else now_ms - age_ms

    if dry_run:
        found = [(str(name), inspector.expiring(name, before_ms(name), kept)) for name in names]
        listed = [{"table": name, "snapshots": len(ids), "dry_run": True} for name, ids in found]
        _print_done(Done(listed), as_json, progress_json)
        return
    done = _MaintenanceRun(settings, master, progress_json).each(
        names, "expiring", lambda by, name: by.expire(name, before_ms(name), kept).as_dict()
    )
    _print_done(done, as_json, progress_json)


@app.command()
def orphans(
    topic: options.TopicOrAll = None,
    older_than: OlderThan = None,
    dry_run: DryRun = False,
    master: Master = None,
    while_stdin: options.WhileStdin = False,
    progress_json: options.ProgressJson = False,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Remove files that no snapshot references, as left by a crash. At least a day old: see the settings."""
    asked = _asked(server, data, config, master, while_stdin)
    if asked is not None:
        done = _by_server(asked, "orphans", topic, older_than_ms=_span(older_than), dry_run=dry_run)
    else:
        settings = options.settings_on_disk(data, config)
        inspector = _inspector(settings)
        from frazil.pipeline.maintenance.procedures import orphan_before_ms

        before_ms = orphan_before_ms(settings, SystemClock(), _span(older_than))
        done = _MaintenanceRun(settings, master, progress_json).each(
            inspector.names(topic),
            "looking for orphans of",
            lambda by, name: by.orphans(name, before_ms, dry_run=dry_run).as_dict(),
        )
    if not as_json:
        for path in (path for one in done.tables for path in one["files"]):
            output.say(path)
        done = Done([{**one, "files": len(one["files"])} for one in done.tables], done.failed)
    _print_done(done, as_json, progress_json)


@app.command()
def maintain(
    topic: options.TopicOrAll = None,
    orphans: WithOrphans = True,
    dry_run: DryRun = False,
    master: Master = None,
    while_stdin: options.WhileStdin = False,
    progress_json: options.ProgressJson = False,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Compact, expire and remove orphans where due, by the settings. The mover runs this periodically."""
    asked = _asked(server, data, config, master, while_stdin)
    if asked is not None:
        done = _by_server(asked, "maintain", topic, no_orphans=not orphans, dry_run=dry_run)
    else:
        settings = options.settings_on_disk(data, config)
        done = _MaintenanceRun(settings, master, progress_json).maintain(_inspector(settings), topic, orphans, dry_run)
    _print_done(done, as_json, progress_json)
    if not dry_run and not progress_json and any(one["error"] for one in done.tables):
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class Done:
    """The result for each table, and which ones failed."""

    tables: list[dict[str, Any]]
    failed: list[dict[str, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _MaintenanceRun:
    """Table maintenance in this process. Spark starts only if there is a table to work on."""

    settings: Settings
    master: str | None
    progress_json: bool

    def each(
        self, names: Sequence[TableName], doing: str, do: Callable[[Maintenance, TableName], dict[str, Any]]
    ) -> Done:
        """Process one table after another; a failure does not stop the others."""
        done = Done([])
        if not names:
            return done
        advance = self._counter(len(names))
        from frazil.pipeline.maintenance.procedures import open_maintenance

        with open_maintenance(self.settings, self.master) as maintenance:
            for name in names:
                output.say(f"{doing} {name}")
                try:
                    done.tables.append(do(maintenance, name))
                except FrazilError as error:
                    if len(names) == 1:
                        raise
                    done.failed.append({"table": str(name), "message": error.message})
                advance(1)
        return done

    def maintain(self, inspector: TableInspector, topic: str | None, orphans: bool, dry_run: bool) -> Done:
        from frazil.pipeline.maintenance.maintenance_pass import Kept, Round
        from frazil.pipeline.maintenance.procedures import open_maintenance, orphan_before_ms

        clock = SystemClock()
        before_ms = orphan_before_ms(self.settings, clock, None) if orphans else None
        keeping = Round(inspector, clock.now_us() // 1_000, before_ms, self.settings.maintenance.snapshots_min)
        dues = [keeping.due(name) for name in inspector.names(topic)]
        if dry_run:
            return Done([due.as_dict() for due in dues])
        results = [Kept(str(due.name), error=due.error).as_dict() for due in dues if not due]
        if any(dues):
            advance = self._counter(len(dues) - len(results))
            with open_maintenance(self.settings, self.master) as maintenance:
                for due in filter(None, dues):
                    output.say(f"keeping {due.name}")
                    results.append(keeping.keep(maintenance, due).as_dict())
                    advance(1)
        return Done(results)

    def _counter(self, total: int) -> Callable[[int], None]:
        return JsonProgress("tables", total).advance if self.progress_json else lambda _: None


def _asked(
    server: str | None, data: Path | None, config: Path | None, master: str | None, while_stdin: bool
) -> Server | None:
    """Return the server that does the work; None if this process does: for a server, without a server, or with
    --master.
    """
    if while_stdin:
        end_with_stdin()
        return None
    if master is None:
        return find_server(server, data, config)
    if named_server(server, data) is not None:
        raise InvalidInput(
            "--master: a server runs Spark as its own settings say; leave --master out, or name the folder by --data",
            field="master",
        )
    return None


def _by_server(server: Server, verb: str, topic: str | None, **given: Any) -> Done:
    asked: dict[str, Any] = {name: value for name, value in given.items() if value is not None and value is not False}
    if asked.pop("no_orphans", False):
        asked["orphans"] = False
    asked |= {"verb": verb} if topic is None else {"verb": verb, "topic": str(TopicName.parse(topic))}

    def begin(stack: contextlib.ExitStack, total: int) -> Callable[[int], None]:
        return stack.enter_context(counter(verb, total)).advance

    found = run_job(server, "/v1/maintenance", asked, "tables", begin)
    return Done(found["tables"], found["failed"])


def _inspector(settings: Settings) -> TableInspector:
    with needs():
        from frazil.lake.maintenance.table_inspection import TableInspector
    return TableInspector(settings)


def _span(text: str | None) -> int | None:
    return None if text is None else parse_duration_ms(text, "--older-than")


def _print_done(done: Done, as_json: bool, progress_json: bool = False) -> None:
    if progress_json:
        output.print_json(asdict(done))
        return
    _print_results(done.tables, as_json)
    for one in done.failed:
        output.say(f"{one['table']}: {one['message']}")
    if done.failed:
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
