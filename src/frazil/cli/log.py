"""`frazil log`: inspect segments, check all bytes, repair and renumber on explicit request."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.renumber import renumber
from frazil.cli.target.jobs import run_job
from frazil.cli.target.server import named_server, refuse_server
from frazil.cli.target.with_parent import end_with_stdin
from frazil.cli.terminal import options, output
from frazil.cli.terminal.progress import JsonProgress, bar
from frazil.core.disk import LocalDisk
from frazil.core.errors import CorruptLog, InvalidInput, LakeUnavailable, TopicNotFound
from frazil.core.names import TopicName
from frazil.log.folder.layout import topic_names

if TYPE_CHECKING:
    from frazil.core.settings import Settings
    from frazil.log.repair.check import CheckReport
    from frazil.log.repair.repair import Repaired
    from frazil.log.repair.survey import FrameInfo, SegmentFrames

app = typer.Typer(no_args_is_help=True, help="Inspect, check and repair the files of the log.")
app.command()(renumber)

CORRUPT = 5
SENDERS_SHOWN = 3


@app.command()
def inspect(
    segment: Annotated[Path, typer.Argument(metavar="SEGMENT", help="A .wal file.")],
    server: options.Server = None,
    data: options.Data = None,  # noqa: ARG001 - on every verb, so that a wrapper may always add them
    config: options.Config = None,  # noqa: ARG001
    as_json: options.Json = False,
) -> None:
    """Show the header and the frames of one segment file. Works while another process owns the folder."""
    if server is not None:
        raise InvalidInput(
            "--server: a segment is a file, and is looked into on the host that has it: leave --server out there; "
            "`frazil log check` goes through all of a server's files",
            field="server",
        )
    from frazil.log.repair.survey import SegmentFrames

    try:
        frames = SegmentFrames(LocalDisk(), segment)
    except OSError as error:
        raise InvalidInput(f"cannot read {segment}: {error.strerror}") from None
    found: list[FrameInfo] = []
    bad: CorruptLog | None = None
    try:
        for frame in frames:
            found.append(frame)
    except CorruptLog as error:
        bad = error
    finally:
        frames.close()
    if as_json:
        _print_segment_json(frames, found)
    else:
        _print_segment(frames, found)
    if bad is not None:
        raise bad


def _print_segment_json(frames: SegmentFrames, found: list[FrameInfo]) -> None:
    head = frames.head
    output.print_json(
        {
            "path": str(frames.path),
            "topic": head.topic,
            "log_id": head.log_id,
            "sync_mode": head.sync_mode.value,
            "schema": [str(field) for field in head.schema],
            "base": frames.base,
            "size_bytes": frames.size_bytes,
            "used_bytes": frames.position,
            "producers": [
                {"producer": name, "epoch": state.epoch, "next_sequence": state.next_sequence}
                for name, state in frames.producers.all().items()
            ],
            "frames": [frame.as_dict() for frame in found],
        }
    )


def _print_segment(frames: SegmentFrames, found: list[FrameInfo]) -> None:
    head = frames.head
    output.print_pairs(
        [
            ("segment", frames.path),
            ("topic", head.topic),
            ("log id", head.log_id),
            ("sync mode", head.sync_mode.value),
            ("columns", ", ".join(f"{field.name} {field.type}" for field in head.schema)),
            ("size", f"{frames.size_bytes} bytes, {frames.position} used"),
        ]
    )
    known = frames.producers.all()
    if known:
        print("producers when it began:")
        facts = [(output.fact_shown(name), state.epoch, state.next_sequence) for name, state in known.items()]
        output.print_table(("producer", "epoch", "next sequence"), facts, right=("epoch", "next sequence"))
    headings = ["position", "frame", "offset", "rows", "bytes", "time"]
    numbered = any(one.sent for one in found)
    rows = [
        [one.position, one.kind, one.offset, one.rows, one.bytes, output.time_shown(one.time_us)]
        + ([_sent(one)] if numbered else [])
        for one in found
    ]
    headings += ["sent by"] if numbered else []
    output.print_table(headings, rows, right=("position", "offset", "rows", "bytes"))


def _sent(frame: FrameInfo) -> str:
    """The producers of its rows: name, epoch and sequences, at most a few."""
    shown = [
        f"{output.fact_shown(one.sent.producer)} epoch {one.sent.epoch} #{one.sent.sequence}"
        + (f"-{one.sent.sequence + one.rows - 1}" if one.rows > 1 else "")
        for one in frame.sent[:SENDERS_SHOWN]
    ]
    more = len(frame.sent) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


@app.command()
def check(
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="Only this one.")] = None,
    while_stdin: options.WhileStdin = False,
    progress_json: options.ProgressJson = False,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Read everything and report the first bad byte of each topic. Changes nothing, and needs no lock."""
    from frazil.log.repair.check import State

    if while_stdin:
        end_with_stdin()
    name = None if topic is None else TopicName.parse(topic)
    named = None if while_stdin else named_server(server, data, config)
    if named is not None:
        asked = {} if name is None else {"topic": str(name)}
        found = run_job(named, "/v1/log-checks", asked, "bytes", _checking)["topics"]
    else:
        settings = options.settings_on_disk(data, config)
        found = [report.as_dict() for report in _check(settings, None if name is None else [name], progress_json)]
    if progress_json:
        output.print_json({"topics": found})
        return
    if as_json:
        output.print_json(found)
    else:
        _print_reports(found)
    if any(one["state"] == State.CORRUPT.value for one in found):
        raise typer.Exit(CORRUPT)


def _checking(stack: contextlib.ExitStack, total: int) -> Callable[[int], None]:
    return stack.enter_context(bar("checking", total)).advance


def _check(settings: Settings, names: list[TopicName] | None, progress_json: bool) -> list[CheckReport]:
    from frazil.log.folder.ownership import owner_of
    from frazil.log.repair.check import check as check_log

    disk, folder = LocalDisk(), settings.log_folder
    if not folder.is_dir():
        if names:
            raise TopicNotFound(str(names[0]))
        output.say(f"there is no log in {settings.data}")
        return []
    wanted = topic_names(disk, folder) if names is None else names
    total = sum(file.stat().st_size for name in wanted for file in _files(folder, name))
    with contextlib.ExitStack() as stack:
        advance = JsonProgress("bytes", total).advance if progress_json else _checking(stack, total)
        owned = owner_of(settings) is not None
        return list(check_log(disk, folder, names, owned=owned, on_segment=lambda segment: advance(segment.used_bytes)))


def _files(folder: Path, name: TopicName) -> list[Path]:
    return [path for path in (folder / name.namespace / name.topic).glob("*.wal") if path.is_file()]


def _print_reports(reports: list[dict[str, Any]]) -> None:
    headings = ("topic", "state", "segments", "frames", "rows", "bytes")
    if reports:
        output.print_table(headings, [[one[name] for name in headings] for one in reports], right=headings[2:])
    for one in reports:
        for flaw in one["flaws"]:
            print(f"{one['topic']}: first bad byte: {flaw['path']} at byte {flaw['position']}: {flaw['reason']}")
        torn = one["torn"]
        if torn is not None and not one["flaws"]:
            print(
                f"{one['topic']}: torn tail: {torn['path']} at byte {torn['position']}: {torn['reason']}; "
                "it was never acknowledged, and is cut when the folder is next opened"
            )
        for kept in one["set_aside"]:
            output.say(f"{one['topic']}: set aside earlier: {kept}")


@app.command()
def repair(
    topic: options.TopicArgument,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    yes: options.Yes = False,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Cut a topic's log at its first bad byte and keep the removed bytes. No process may own the folder.

    The log continues at the recovered end: offsets of removed rows are assigned to other rows.
    """
    from frazil.log.repair.check import State
    from frazil.log.repair.repair import repair as repair_topic

    why = "the files that are to be cut, so it can't have them repaired"
    refuse_server(server, data, f"frazil log repair {topic}", why)
    settings = options.settings_on_disk(data, config)
    planned = repair_topic(settings, topic, dry_run=True)
    warning = _table_warning(settings, planned) if planned.plan.steps else None
    if not dry_run and planned.plan.steps:
        if not yes:
            for line in [*_report_lines(planned), *([warning] if warning else [])]:
                output.say(line)
            typer.confirm(f"Repair {topic}?", abort=True, err=True)
        planned = repair_topic(settings, topic)
    if as_json:
        output.print_json({**planned.as_dict(), "table_warning": warning})
    else:
        print("\n".join([*_report_lines(planned), *([warning] if warning else [])]))
    if not dry_run and planned.after is not None and planned.after.state is State.CORRUPT:
        raise typer.Exit(CORRUPT)


def _table_warning(settings: Settings, done: Repaired) -> str | None:
    """Warn that the log will end before its table, or that the table could not be read; None otherwise."""
    name = TopicName.parse(done.plan.topic)
    try:
        from frazil.lake.tables.look import TableLook
        from frazil.lake.tables.schema import table_of
    except ModuleNotFoundError:
        return None  # without the lake's packages this installation has never moved a row
    table = table_of(name)[0]
    try:
        end = TableLook(settings).at(table, done.plan.log_id).end
    except LakeUnavailable as error:
        return f"whether {table} has more of it could not be asked ({error.message}); see: frazil pipeline status"
    if end is None or end <= done.plan.end:
        return None
    return (
        f"{table} has offsets up to {end}, more than the log will have: nothing of the topic is moved before it is "
        f"renumbered; next, run: frazil log renumber {name}"
    )


def _report_lines(done: Repaired) -> list[str]:
    plan = done.plan
    if not plan.steps:
        return [f"{plan.topic}: there is nothing to repair"]
    lines = [f"bad: {flaw.path} at byte {flaw.position}: {flaw.reason}" for flaw in plan.flaws]
    lines += [f"{'would ' if done.dry_run else 'did: '}{step}" for step in plan.steps]
    if plan.rows_cut:
        lines.append(
            f"{output.plural(plan.rows_cut, 'valid row')} after the bad byte leave the log and are kept in the files"
        )
    lines.append(f"the log continues at offset {plan.end}")
    if plan.end < plan.end_known or plan.rows_cut:
        lines.append(f"offsets from {plan.end} on are assigned again: discard any that you have stored for this topic")
    return lines
