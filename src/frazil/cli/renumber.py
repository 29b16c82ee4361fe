"""`frazil log renumber`: keep the rows of a log and of a table that is ahead of it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from frazil.cli.target.server import refuse_server
from frazil.cli.terminal import options, output
from frazil.cli.terminal.progress import counter
from frazil.core.extras import needs

if TYPE_CHECKING:
    from collections.abc import Callable

    from frazil.core.settings import Settings
    from frazil.node.renumber.renumber import Renumbered, RenumberPlan

UNAVAILABLE = 4


def renumber(
    topic: options.TopicArgument,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    yes: options.Yes = False,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Continue a log that ends before its table after the table's rows. No process may own the folder.

    The rows of both are kept: rows that only the log has get new offsets, from the table's end on. The former log is
    kept unchanged in another folder.
    """
    refuse_server(server, data, f"frazil log renumber {topic}", "the log that is to be renumbered")
    settings = options.settings_on_disk(data, config)
    done = _renumbered(settings, topic, dry_run=True)
    if not dry_run and (done.plan is not None or done.handover_due):
        if not yes:
            for line in _lines(done):
                output.say(line)
            typer.confirm(f"Renumber {topic}?", abort=True, err=True)
        done = _renumbered(settings, topic, dry_run=False)
    if as_json:
        output.print_json(done.as_dict())
    else:
        print("\n".join(_lines(done)))
    if done.table_error is not None:
        raise typer.Exit(UNAVAILABLE)


def _renumbered(settings: Settings, topic: str, *, dry_run: bool) -> Renumbered:
    with needs():
        from frazil.node.renumber.renumber import renumber as renumber_topic
    with contextlib.ExitStack() as stack:

        def begin(what: str, rows: int) -> Callable[[int], None]:
            stack.close()  # one bar at a time
            return stack.enter_context(counter(what, rows)).advance

        return renumber_topic(settings, topic, dry_run=dry_run, begin=begin)


def _lines(done: Renumbered) -> list[str]:
    lines = []
    if done.handover_due:
        did = "handed over" if done.handed_over else "would hand over"
        lines.append(f"{did} {done.table} to the log, which an earlier renumbering left undone")
    if done.plan is not None:
        lines += _planned(done.plan, done.dry_run)
    elif not lines:
        lines.append(f"{done.topic}: the log is not behind {done.table}; there is nothing to renumber")
    if done.kept_as is not None:
        lines.append(f"the former log is kept as {done.kept_as}; remove it when it is no longer needed")
    if done.table_error is not None:
        lines.append(f"the table is not assigned to the new log yet: {done.table_error}")
        lines.append("the mover does it as soon as it can, or run this again")
    return lines


def _planned(plan: RenumberPlan, dry_run: bool) -> list[str]:
    would = "would " if dry_run else "did: "
    of_table = output.plural(plan.table_end - plan.cut, "row")
    lines = [
        f"{plan.table} has offsets up to {plan.table_end}; the log has {plan.first_offset} up to {plan.log_end}",
        f"below offset {plan.cut} they have the same rows",
        f"{would}keep {of_table} that only the table has: offsets {plan.cut} up to {plan.table_end}",
    ]
    if plan.rows:
        lines.append(
            f"{would}renumber {output.plural(plan.rows, 'row')} that only the log has: offsets {plan.cut} up to "
            f"{plan.log_end} become {plan.table_end} up to {plan.end}"
        )
    lines.append(f"{would}continue the topic at offset {plan.end}, as a new log that follows the table's rows")
    lines += [
        f"{would}reset subscription {output.fact_shown(one.subscription)} from {one.offset} to {one.goes_on_at}"
        for one in plan.subscriptions
    ]
    lines.append(f"discard any offset from {plan.cut} on that you have stored for rows of the log")
    return lines
