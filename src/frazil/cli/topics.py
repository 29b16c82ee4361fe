"""`frazil topics`: which topics there are, made and deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from frazil.cli import options, output
from frazil.cli.quantities import parse_bytes, parse_duration_ms
from frazil.cli.schema_file import load_schema
from frazil.core.disk import LocalDisk
from frazil.core.errors import InvalidInput
from frazil.core.names import TopicName
from frazil.core.settings import RetentionSettings
from frazil.log.survey import TopicSummary, describe_topic, summarize, topic_names
from frazil.topics.opening import open_topics

app = typer.Typer(no_args_is_help=True, help="List, describe, make and delete topics.")


@app.command("list")
def list_(data: options.Data = None, config: options.Config = None, as_json: options.Json = False) -> None:
    """List the topics. Reads the files only, so it works beside a process that owns the folder."""
    settings = options.settings_on_disk(data, config)
    disk, folder = LocalDisk(), settings.log_folder
    found = [summarize(disk, folder, name) for name in topic_names(disk, folder)]
    if as_json:
        output.print_json([one.as_dict() for one in found])
    elif not found:
        output.say(f"there are no topics in {settings.data}")
    else:
        _print_summaries(found)


def _print_summaries(found: list[TopicSummary]) -> None:
    rows = [
        (one.topic, _kind(one), one.messages, one.first_offset, one.end, one.segments, output.bytes_shown(one.bytes))
        for one in found
    ]
    headings = ("topic", "kind", "messages", "first", "end", "segments", "size")
    output.print_table(headings, rows, right=("messages", "first", "end", "segments", "size"))
    for one in found:
        if one.problem:
            output.say(f"{one.topic}: {one.problem}")


@app.command()
def describe(
    topic: options.TopicArgument,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Describe one topic. Reads the files only, so it works beside a process that owns the folder."""
    settings = options.settings_on_disk(data, config)
    one = describe_topic(LocalDisk(), settings.log_folder, TopicName.parse(topic))
    if as_json:
        output.print_json(one.as_dict())
        return
    retention = one.retention or settings.wal.retention
    output.print_pairs(
        [
            ("topic", one.topic),
            ("kind", _kind(one)),
            ("messages", one.messages),
            ("first offset", one.first_offset),
            ("end", one.end),
            ("segments", one.segments),
            ("size", output.bytes_shown(one.bytes)),
            ("created", output.time_shown(one.created_us)),
            ("retention age", "for ever" if retention.age_ms is None else f"{retention.age_ms} ms"),
            ("retention acks", "until everyone has acknowledged" if retention.until_acked else "-"),
            ("retention size", "no limit" if retention.bytes is None else output.bytes_shown(retention.bytes)),
            ("log id", one.log_id),
        ]
    )
    if one.schema is not None:
        print("columns:")
        for field in one.schema:
            print(f"  {field.name}: {field.type}{'' if field.nullable else ' not null'}")
    if one.problem:
        output.say(one.problem)


@app.command()
def create(
    topic: options.TopicArgument,
    schema: Annotated[
        Path | None,
        typer.Option("--schema", metavar="FILE", help="Make a typed topic of these columns: Arrow IPC schema or JSON."),
    ] = None,
    retention_age: Annotated[
        str | None, typer.Option("--retention-age", metavar="TIME", help="Keep rows this long, as 12h or 7d.")
    ] = None,
    retention_bytes: Annotated[
        str | None, typer.Option("--retention-bytes", metavar="SIZE", help="Keep this much, as 500MiB or 10GiB.")
    ] = None,
    until_acked: Annotated[
        bool, typer.Option("--retain-until-acked", help="Keep rows until every subscription has acknowledged them.")
    ] = False,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Make a topic."""
    settings = options.settings_on_disk(data, config)
    TopicName.parse(topic)
    columns = load_schema(schema) if schema is not None else None
    retention = None
    if until_acked and (retention_age is not None or retention_bytes is not None):
        raise InvalidInput("--retain-until-acked excludes --retention-age and --retention-bytes")
    if until_acked or retention_age is not None or retention_bytes is not None:
        retention = RetentionSettings(
            until_acked=until_acked,
            age_ms=parse_duration_ms(retention_age, "--retention-age") if retention_age is not None else None,
            bytes=parse_bytes(retention_bytes, "--retention-bytes") if retention_bytes is not None else None,
        )
    with open_topics(settings) as storage:
        made = storage.create_topic(topic, schema=columns, retention=retention)
        stats = made.stats()
    if as_json:
        output.print_json({"topic": stats.topic, "log_id": stats.log_id, "typed": stats.typed})
    else:
        print(f"made {'typed ' if stats.typed else ''}topic {stats.topic}")


@app.command()
def delete(
    topic: options.TopicArgument,
    yes: options.Yes = False,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Delete a topic and all its rows, for good."""
    settings = options.settings_on_disk(data, config)
    name = TopicName.parse(topic)
    one = describe_topic(LocalDisk(), settings.log_folder, name)
    if not yes:
        rows = "an unknown number of messages" if one.messages is None else output.plural(one.messages, "message")
        typer.confirm(f"Delete {topic} with {rows} for good?", abort=True, err=True)
    with open_topics(settings) as storage:
        storage.delete_topic(topic)
    if as_json:
        output.print_json({"topic": topic, "deleted": True, "messages": one.messages})
    else:
        print(f"deleted topic {topic}")


def _kind(one: TopicSummary) -> str:
    return "?" if one.typed is None else "typed" if one.typed else "messages"
