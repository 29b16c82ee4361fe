"""`frazil restore`: make a data folder again from the objects of its logs."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from frazil.cli.terminal import options, output
from frazil.cli.terminal.progress import counter
from frazil.core.extras import needs

if TYPE_CHECKING:
    from collections.abc import Callable

    from frazil.node.restore.restore import Restored


def restore(
    leave_out: Annotated[
        list[str] | None, typer.Option("--leave-out", metavar="LOG_ID", help="Do not restore this log; repeatable.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be restored.")] = False,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Make a new data folder with all logs that the object store has, after a disk is lost.

    Each log goes on where its objects end, or its table, with its producers. The settings name the store. The folder
    must have no topics; an interrupted call is continued by the next one.
    """
    settings = options.settings_on_disk(data, config)
    with needs():
        from frazil.node.restore.restore import restore as restore_folder
    with contextlib.ExitStack() as stack:

        def begin(what: str, count: int) -> Callable[[int], None]:
            stack.close()  # one bar at a time
            return stack.enter_context(counter(what, count)).advance

        done = restore_folder(settings, dry_run=dry_run, leave_out=leave_out or (), begin=begin)
    if as_json:
        output.print_json(done.as_dict())
    else:
        _print(done)


def _print(done: Restored) -> None:
    rows = [
        (one.topic, one.log_id, one.first_offset, one.end, one.objects, output.bytes_shown(one.size_bytes))
        for one in done.logs
    ]
    headings = ("topic", "log", "from offset", "goes on at", "objects", "size")
    output.print_table(headings, rows, right=headings[2:])
    for one in done.logs:
        if one.table_end > one.objects_end:
            output.say(
                f"{one.topic}: offsets {one.objects_end} up to {one.table_end} are in its table alone; producers must "
                "be opened again"
            )
    for left in done.left_out:
        output.say(f"left out: log {left.log_id}{f' of {left.topic}' if left.topic else ''}: {left.reason}")
    did = "would restore" if done.dry_run else "restored"
    output.say(f"{did} {output.plural(len(done.logs), 'log')}; rows that were not uploaded are not there")
