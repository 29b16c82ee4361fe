"""`frazil consume`: read a topic from any point, and go on as it grows."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Annotated

import pyarrow as pa
import typer

from frazil.cli import formats, options
from frazil.cli.output import json_line
from frazil.core.errors import InvalidInput, LakeUnavailable
from frazil.core.rows import to_messages
from frazil.core.settings import resolve_settings
from frazil.log.ownership import served_by
from frazil.log.positions import Start
from frazil.log.topic import Topic
from frazil.topics.logs import OwnerView
from frazil.topics.opening import open_topics
from frazil.topics.read_only import ReadOnlyBatches, ReadOnlyTopic, open_read_only
from frazil.topics.served import ServedTopic

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_WRITE_BYTES = 256 * 1024

Readable = Topic | ReadOnlyTopic | ServedTopic


def consume(
    topic: options.TopicArgument,
    start: Annotated[
        str,
        typer.Option("--offset", "-o", metavar="start|end|N|@TIME", help="@TIME: ISO 8601 (UTC), or ms since 1970."),
    ] = "start",
    count: Annotated[int | None, typer.Option("--count", "-n", min=0, help="Stop after so many messages.")] = None,
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
        bool, typer.Option("--tables", help="Read the table alone, through the catalog; needs neither log nor owner.")
    ] = False,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Print the messages of a topic, from its start unless told otherwise. A typed topic prints rows as JSON."""
    settings = resolve_settings(data, config) if tables else options.settings_on_disk(data, config)
    if format_ is not None and as_json:
        raise InvalidInput("give -f or --json, not both")
    position = parse_start(start)
    pieces = None if as_json else formats.parse_format(formats.DEFAULT_FORMAT if format_ is None else format_)
    if tables:
        with open_read_only(settings) as node:
            _print_all(node.topic(topic), position, count, follow, pieces)
        return
    options.check_exists(settings, topic)
    served = served_by(settings)
    if served is not None:
        with contextlib.closing(OwnerView(served["flight"])) as view:
            _print_all(ServedTopic(settings, view, topic), position, count, follow, pieces)
        return
    with open_topics(settings) as storage:
        _print_all(storage.topic(topic, create=False), position, count, follow, pieces)


def parse_start(text: str) -> Start:
    if text == "start":
        return "earliest"
    if text == "end":
        return "latest"
    if re.fullmatch(r"\d{1,19}", text, re.ASCII):
        return int(text)
    if text.startswith("@"):
        return _parse_time(text[1:])
    raise InvalidInput(f"-o: {text!r} is not start, end, an offset or @TIME")


def _parse_time(text: str) -> datetime:
    try:
        if re.fullmatch(r"\d{1,19}", text, re.ASCII):
            return _EPOCH + timedelta(milliseconds=int(text))
        time = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise InvalidInput(f"-o: @{text} is neither ISO 8601, as @2026-05-01T12:00:00Z, nor ms since 1970") from None
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)


def _print_all(
    topic: Readable, start: Start, count: int | None, follow: bool, pieces: list[formats.Piece] | None
) -> None:
    left = count
    if left == 0:
        return
    reader = topic.read_batches(start, follow=follow)
    try:
        for batch in _patiently(reader) if follow and isinstance(reader, ReadOnlyBatches) else reader:
            rows = batch if left is None else batch.slice(0, left)
            _write(_lines(topic, rows, pieces))
            left = None if left is None else left - rows.num_rows
            if left == 0:
                return
    finally:
        reader.close()


def _patiently(reader: ReadOnlyBatches) -> Iterator[pa.RecordBatch]:
    """Whoever follows outlives a catalog or store that is away; it is told of once for each time."""
    told = False
    while True:
        try:
            batch = next(reader, None)
        except LakeUnavailable as error:
            if not told:
                print(f"frazil: {error.message}; waiting for it", file=sys.stderr, flush=True)
            told = True
            reader.wait()
            continue
        if batch is None:
            return
        told = False
        yield batch


def _lines(topic: Readable, batch: pa.RecordBatch, pieces: list[formats.Piece] | None) -> Iterable[bytes]:
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


def _write(lines: Iterable[bytes]) -> None:
    """In large pieces, and nothing held back behind a batch: whoever follows sees it at once."""
    out = sys.stdout.buffer
    held, held_bytes = [], 0
    for line in lines:
        held.append(line)
        held_bytes += len(line)
        if held_bytes >= _WRITE_BYTES:
            out.write(b"".join(held))
            held, held_bytes = [], 0
    out.write(b"".join(held))
    out.flush()
