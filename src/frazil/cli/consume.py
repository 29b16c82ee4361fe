"""`frazil consume`: read a topic from any position, and follow it as it grows."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from frazil.cli.target.opened_topic import opened_topic
from frazil.cli.terminal import formats, options
from frazil.cli.terminal.output import json_line
from frazil.cli.terminal.positions import parse_start
from frazil.cli.terminal.streams import write_lines
from frazil.core.errors import InvalidInput, LakeUnavailable

if TYPE_CHECKING:
    import pyarrow as pa

    from frazil.client.topic import RemoteTopic
    from frazil.log.read.positions import Start
    from frazil.log.topic import Topic
    from frazil.node.read_only import ReadOnlyBatches, ReadOnlyTopic

    Readable = Topic | ReadOnlyTopic | RemoteTopic


def consume(
    topic: options.TopicArgument,
    start: Annotated[
        str,
        typer.Option("--offset", "-o", metavar="start|end|N|@TIME", help="@TIME: ISO 8601 (UTC), or ms since 1970."),
    ] = "start",
    count: Annotated[int | None, typer.Option("--count", "-n", min=0, help="Stop after this many messages.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more, until Ctrl-C.")] = False,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            metavar="FORMAT",
            help=r"%o offset, %k key, %v payload, %t topic, %T time in ms, %h attributes, %%, \n, \t.",
        ),
    ] = None,
    tables: Annotated[
        bool, typer.Option("--tables", help="Read the table, and the objects behind it; needs neither log nor owner.")
    ] = False,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Print the messages of a topic, by default from its start. A typed topic prints rows as JSON."""
    if format_ is not None and as_json:
        raise InvalidInput("give -f or --json, not both")
    if tables and server is not None:
        raise InvalidInput("--tables asks the catalog, and --server a server: give one of them")
    position = parse_start(start)
    pieces = None if as_json else formats.parse_format(formats.DEFAULT_FORMAT if format_ is None else format_)
    with _opened(topic, tables, server, data, config) as opened:
        _print_all(opened, position, count, follow, pieces)


@contextlib.contextmanager
def _opened(topic: str, tables: bool, server: str | None, data: Path | None, config: Path | None) -> Iterator[Readable]:
    """Open the table alone, or the topic."""
    if tables:
        from frazil.core.settings import resolve_settings
        from frazil.node.read_only import open_read_only

        with open_read_only(resolve_settings(data, config)) as node:
            yield node.topic(topic)
        return
    with opened_topic(topic, server, data, config) as found:
        yield found


def _print_all(
    topic: Readable, start: Start, count: int | None, follow: bool, pieces: list[formats.Piece] | None
) -> None:
    left = count
    if left == 0:
        return
    from frazil.node.read_only import ReadOnlyBatches

    reader = topic.read_batches(start, follow=follow)
    try:
        for batch in _patiently(reader) if follow and isinstance(reader, ReadOnlyBatches) else reader:
            rows = batch if left is None else batch.slice(0, left)
            write_lines(_lines(topic, rows, pieces))
            left = None if left is None else left - rows.num_rows
            if left == 0:
                return
    finally:
        reader.close()


def _patiently(reader: ReadOnlyBatches) -> Iterator[pa.RecordBatch]:
    """Keep following while a catalog or store is unavailable; each outage is reported once."""
    reported = False
    while True:
        try:
            batch = next(reader, None)
        except LakeUnavailable as error:
            if not reported:
                print(f"frazil: {error.message}; waiting for it", file=sys.stderr, flush=True)
            reported = True
            reader.wait()
            continue
        if batch is None:
            return
        reported = False
        yield batch


def _lines(topic: Readable, batch: pa.RecordBatch, pieces: list[formats.Piece] | None) -> Iterable[bytes]:
    from frazil.core.rows import to_messages

    name = topic.name
    if topic.schema is None:
        for message in to_messages(batch):
            if pieces is None:
                yield json_line(formats.message_as_json(name, message)).encode() + b"\n"
            else:
                yield formats.formatted(pieces, formats.shown_message(name, message))
    else:
        for row in formats.batch_rows(batch):
            if pieces is None:
                yield json_line(formats.row_as_json(name, row)).encode() + b"\n"
            else:
                yield formats.formatted(pieces, formats.shown_row(name, row))
