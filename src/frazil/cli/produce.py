"""`frazil produce`: publish a message, or one for each line of a file or of stdin.

Lines that arrive together are published together: a file in large batches, a slow pipe line by line.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from frazil.cli.target.server import Server, find_server
from frazil.cli.terminal import options, output
from frazil.cli.terminal.progress import bar
from frazil.core.errors import FrazilError, InvalidInput, MessageTooLarge

if TYPE_CHECKING:
    import pyarrow as pa

    from frazil.client.topic import RemoteTopic
    from frazil.core.settings import WalSettings
    from frazil.log.topic import Topic
    from frazil.log.write.publishing import Outgoing

READ_BYTES = 1024 * 1024
BATCH_ROWS_MAX = 50_000
_ROW_BYTES = 128
"""Estimated overhead of a line, so that a batch stays well within its limit."""


def produce(
    topic: options.TopicArgument,
    payload: Annotated[str | None, typer.Argument(help="The message; without it, each line of stdin is one.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Publish each line of this file ('-' is stdin).")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of every message.")] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", help="Each line is KEY, this separator, and the message.")
    ] = None,
    attribute: Annotated[
        list[str] | None, typer.Option("--attribute", "-a", metavar="NAME=VALUE", help="May be given many times.")
    ] = None,
    create: Annotated[bool, typer.Option(help="Create the topic if it does not exist.")] = True,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Publish messages; returns once they are acknowledged, as the sync mode says. A typed topic takes JSON rows."""
    if payload is not None and file is not None:
        raise InvalidInput("give a message or --file, not both")
    if key is not None and key_separator is not None:
        raise InvalidInput("give --key or --key-separator, not both")
    if key_separator == "":
        raise InvalidInput("--key-separator must not be empty")
    maker = _Maker(key, key_separator, _attributes(attribute or []))
    sent = _Sent()
    opened = _opened(topic, create, find_server(server, data, config), data, config)
    with _source(payload, file) as source, opened as (target, limits):
        try:
            _publish_all(target, maker, source, limits, sent)
        except FrazilError as error:
            raise sent.explain(error) from None
    _print_sent(target.name, sent, as_json)


@contextlib.contextmanager
def _opened(
    topic: str, create: bool, server: Server | None, data: Path | None, config: Path | None
) -> Iterator[tuple[Topic | RemoteTopic, WalSettings]]:
    """Return the topic and its limits."""
    if server is not None:
        from frazil.client.storage import connect

        with connect(server.flight(), client=server.flight_credentials) as remote:
            target = remote.topic(topic, create=create)
            yield target, target.limits
        return
    settings = options.settings_on_disk(data, config)
    if not create:
        options.check_exists(settings, topic)
    from frazil.node.opening import open_topics

    with open_topics(settings) as storage:
        yield storage.topic(topic, create=create), settings.wal


class _Sent:
    """Progress: durable messages stay durable when a later batch is refused."""

    def __init__(self) -> None:
        self.messages = 0
        self.first: int | None = None
        self.last: int | None = None

    def add(self, start: int, end: int) -> None:
        self.messages += end - start
        self.first = start if self.first is None else self.first
        self.last = end - 1

    def explain(self, error: FrazilError) -> FrazilError:
        error.fields["published"] = self.messages
        if self.messages:
            error.message += f"; {output.plural(self.messages, 'message')} before it were published (to {self.last})"
        return error


class _Maker:
    """Turns lines into messages, or into rows of a typed topic."""

    def __init__(self, key: str | None, separator: str | None, attributes: dict[str, str] | None) -> None:
        self._key = key
        self._separator = separator.encode() if separator is not None else None
        self._attributes = attributes
        every = [key or "", *(attributes or {}), *(attributes or {}).values()]
        self.row_bytes = _ROW_BYTES + sum(len(text.encode(errors="replace")) for text in every)

    def messages(self, lines: list[bytes], first_line: int) -> list[Outgoing]:
        from frazil.log.write.publishing import Outgoing

        if self._separator is None:
            return [Outgoing(line, self._key, self._attributes) for line in lines]
        made = []
        for number, line in enumerate(lines, start=first_line):
            key, separator, payload = line.partition(self._separator)
            if not separator:
                raise InvalidInput(f"line {number} has no separator {self._separator.decode()!r}", line=number)
            made.append(Outgoing(payload, key, self._attributes))
        return made

    def rows(self, lines: list[bytes], first_line: int, schema: pa.Schema) -> pa.RecordBatch:
        import pyarrow as pa

        if self._key is not None or self._separator is not None or self._attributes:
            raise InvalidInput("a typed topic has columns, no keys or attributes")
        rows = []
        for number, line in enumerate(lines, start=first_line):
            row = _json_object(line, number)
            unknown = set(row).difference(schema.names)
            if unknown:
                raise InvalidInput(f"line {number}: no column {', '.join(sorted(unknown))}", line=number)
            rows.append(row)
        try:
            return pa.RecordBatch.from_pylist(rows, schema=schema)
        except (pa.ArrowException, ValueError, TypeError) as error:
            last = first_line + len(lines) - 1
            raise InvalidInput(f"lines {first_line} to {last}: rows do not fit the columns: {error}") from None


def _json_object(line: bytes, number: int) -> dict[str, object]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"line {number} is not valid JSON: {error}", line=number) from None
    if not isinstance(row, dict):
        raise InvalidInput(f"line {number} must be a JSON object, one value for each column", line=number)
    return row


def _attributes(pairs: list[str]) -> dict[str, str] | None:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InvalidInput(f"--attribute: {pair!r} is not NAME=VALUE")
        found[name] = value
    return found or None


def _source(payload: str | None, file: Path | None) -> BinaryIO:
    if payload is not None:
        return io.BytesIO(os.fsencode(payload))
    if file is None or str(file) == "-":
        return open(sys.stdin.fileno(), "rb", closefd=False)
    try:
        return file.open("rb")
    except OSError as error:
        raise InvalidInput(f"--file: cannot read {file}: {error.strerror}") from None


def _publish_all(topic: Topic | RemoteTopic, maker: _Maker, source: BinaryIO, limits: WalSettings, sent: _Sent) -> None:
    number = 1
    with bar(f"publishing to {topic.name}", _size_of(source)) as progress:
        batches = [[source.read()]] if isinstance(source, io.BytesIO) else lines_of(source, limits)
        for lines in batches:
            for some in portions(lines, maker.row_bytes, limits.batch_bytes_max // 2):
                rows = maker.messages(some, number) if topic.schema is None else maker.rows(some, number, topic.schema)
                offsets = topic.publish_many(rows)
                sent.add(offsets.start, offsets.end)
                number += len(some)
            progress.advance(sum(map(len, lines)) + len(lines))


def portions(lines: list[bytes], row_bytes: int, limit_bytes: int) -> Iterator[list[bytes]]:
    """Group lines into batches of a limited size; a larger line is its own batch."""
    start, size = 0, 0
    for at, line in enumerate(lines):
        cost = len(line) + row_bytes
        if at > start and (size + cost > limit_bytes or at - start >= BATCH_ROWS_MAX):
            yield lines[start:at]
            start, size = at, 0
        size += cost
    yield lines[start:]


def lines_of(source: BinaryIO, limits: WalSettings) -> Iterator[list[bytes]]:
    """Yield lines as soon as they arrive; the last line needs no line end."""
    assert isinstance(source, io.BufferedReader)
    pending: list[bytes] = []
    pending_bytes = 0
    limit = limits.message_bytes_max
    read_bytes = min(READ_BYTES, limits.batch_bytes_max // 2 or 1)
    while data := source.read1(read_bytes):
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join([*pending, lines[0]])
            pending, pending_bytes = [], 0
            yield [line.removesuffix(b"\r") for line in lines]
        pending.append(rest)
        pending_bytes += len(rest)
        if pending_bytes > limit:
            raise MessageTooLarge(pending_bytes, limit)
    if pending_bytes:
        yield [b"".join(pending).removesuffix(b"\r")]


def _size_of(source: BinaryIO) -> int | None:
    try:
        return os.fstat(source.fileno()).st_size or None
    except (OSError, ValueError):
        return None


def _print_sent(topic: str, sent: _Sent, as_json: bool) -> None:
    if as_json:
        output.print_json(
            {"topic": topic, "messages": sent.messages, "first_offset": sent.first, "last_offset": sent.last}
        )
    elif sent.messages == 0:
        output.say("there was nothing to publish")
    elif sent.messages == 1:
        print(f"published 1 message to {topic} at offset {sent.first}")
    else:
        print(f"published {sent.messages} messages to {topic}, offsets {sent.first} to {sent.last}")
