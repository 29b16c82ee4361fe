"""`frazil topics`: list, create, describe, move and delete topics. Uses the server, or a folder without one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.cluster.owners import move, owner, with_figures
from frazil.cli.target.server import Server, find_server, topic_path
from frazil.cli.terminal import options, output
from frazil.cli.terminal.quantities import parse_bytes, parse_duration_ms
from frazil.core.disk import LocalDisk
from frazil.core.errors import InvalidInput, PartitionsElsewhere
from frazil.core.names import TopicName
from frazil.core.partitions import partition_names
from frazil.log.summary import SUMMARY_FIELDS, total

if TYPE_CHECKING:
    import pyarrow as pa

    from frazil.core.settings import RetentionSettings, Settings
    from frazil.node.topics.topics import Topics

app = typer.Typer(no_args_is_help=True, help="List, describe, create, move and delete topics.")
app.command()(owner)
app.command()(move)

RetentionAge = Annotated[
    str | None, typer.Option("--retention-age", metavar="TIME", help="Keep rows this long, as 12h or 7d.")
]
RetentionBytes = Annotated[
    str | None, typer.Option("--retention-bytes", metavar="SIZE", help="Keep this much, as 500MiB or 10GiB.")
]
UntilAcked = Annotated[
    bool,
    typer.Option("--retain-until-acked", help="Keep rows at least until every subscription has acknowledged them."),
]
Ack = Annotated[
    str | None,
    typer.Option("--ack", metavar="LEVEL", help="What rows have reached when acknowledged: memory, disk or object."),
]


@app.command("list")
def list_(
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """List the topics."""
    asked = find_server(server, data, config)
    if asked is not None:
        listed = with_figures(asked, asked.all("/v1/topics"))
        found, where = [_summary(one) for one in listed], asked.address
    else:
        from frazil.node.topics.describing import list_from_files

        settings = options.settings_on_disk(data, config)
        found, where = [{**one, "owner": None} for one in list_from_files(settings)], str(settings.data)
    if as_json:
        output.print_json(found)
    elif not found:
        output.say(f"there are no topics in {where}")
    else:
        _print_summaries(found)


def _summary(answer: dict[str, Any]) -> dict[str, Any]:
    """The fields that a folder has, too; but only a server knows the owner."""
    return {name: answer[name] for name in (*SUMMARY_FIELDS, "owner")}


def _print_summaries(found: list[dict[str, Any]]) -> None:
    owners = len({one.get("owner") for one in found}) > 1
    rows = [
        (
            one["topic"],
            *([one.get("owner")] if owners else []),
            _kind(one),
            one["messages"],
            one["first_offset"],
            one["end"],
            one["segments"],
            output.bytes_shown(one["bytes"]),
        )
        for one in found
    ]
    headings = ("topic", *(["owner"] if owners else []), "kind", "messages", "first", "end", "segments", "size")
    output.print_table(headings, rows, right=("messages", "first", "end", "segments", "size"))
    for one in found:
        if one["problem"]:
            output.say(f"{one['topic']}: {one['problem']}")


@app.command()
def describe(
    topic: options.TopicArgument,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Describe one topic; for a partitioned topic, each partition and the totals."""
    asked = find_server(server, data, config)
    if asked is not None:
        one = _description(asked.get(topic_path(topic)))
        one["partitions"] = with_figures(asked, one["partitions"])
        kept = asked.get(topic_path(topic, "retention"))["effective"] if one["log_id"] and not as_json else {}
    else:
        from frazil.node.topics.describing import describe_from_files

        settings = options.settings_on_disk(data, config)
        one = {"owner": None, **describe_from_files(settings, TopicName.parse(topic))}
        kept = {} if one["partitions"] else one["retention"] or settings.wal.retention.model_dump()
    if as_json:
        output.print_json(one)
        return
    if one["partitions"]:
        print(f"{topic} has {output.plural(len(one['partitions']), 'partition')}; the last line is their sum")
        _print_summaries([*one["partitions"], one])
        return
    output.print_pairs(
        [
            ("topic", one["topic"]),
            ("kind", _kind(one)),
            *([("owner", one["owner"])] if one["owner"] is not None else []),
            ("messages", one["messages"]),
            ("first offset", one["first_offset"]),
            ("end", one["end"]),
            ("segments", one["segments"]),
            ("size", output.bytes_shown(one["bytes"])),
            *_tier_pairs(one["tiers"]),
            ("created", output.time_shown(one["created_us"])),
            ("ack level", one["ack"]),
            *_retention_pairs(kept),
            *_held_back_pairs(one["held_back"]),
            ("log id", one["log_id"]),
        ]
    )
    if one["schema"] is not None:
        print("columns:")
        for column in one["schema"]:
            print(f"  {column['name']}: {column['type']}{'' if column['nullable'] else ' not null'}")
    if one["problem"]:
        output.say(one["problem"])


def _description(answer: dict[str, Any]) -> dict[str, Any]:
    more = {name: answer[name] for name in ("tiers", "held_back")}
    return {**_summary(answer), **more, "partitions": [_summary(one) for one in answer["partitions"]]}


@app.command()
def create(
    topic: options.TopicArgument,
    schema: Annotated[
        Path | None,
        typer.Option(
            "--schema", metavar="FILE", help="Create a typed topic with these columns: Arrow IPC schema or JSON."
        ),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", metavar="N", help="Create TOPIC-part-0 up to TOPIC-part-(N-1): all, or none."),
    ] = None,
    retention_age: RetentionAge = None,
    retention_bytes: RetentionBytes = None,
    until_acked: UntilAcked = False,
    ack: Ack = None,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Create a topic, or all partitions of one."""
    names = [] if partitions is None else [str(one) for one in partition_names(TopicName.parse(topic), partitions)]
    if names and schema is not None:
        raise InvalidInput("--partitions: a typed topic has no partitions; leave out --schema", field="partitions")
    columns = _columns_of(schema) if schema is not None else None
    kept = _retention(retention_age, retention_bytes, until_acked)
    asked = find_server(server, data, config)
    if asked is not None:
        body = {
            "topic": topic,
            "partitions": len(names),
            "arrow_schema": None if columns is None else _as_text(columns),
            "retention": None if kept is None else kept.model_dump(),
            **({} if ack is None else {"ack": ack}),
        }
        answer = asked.post("/v1/topics", body)
        made = {name: answer[name] for name in ("topic", "log_id", "typed", "partitions")}
    else:
        log_id = None
        base = TopicName.parse(topic)
        with _unserved(options.settings_on_disk(data, config)) as topics:
            topics.create(base, partitions=len(names) or None, schema=columns, retention=kept, ack=ack)
            if not names:
                log_id = topics.log_id(base)
        made = {"topic": topic, "log_id": log_id, "typed": columns is not None, "partitions": names}
    if as_json:
        output.print_json(made)
    elif names:
        print(f"made topic {topic} with {output.plural(len(names), 'partition')}, up to {names[-1]}")
    else:
        print(f"made {'typed ' if made['typed'] else ''}topic {made['topic']}")


@app.command()
def retention(
    topic: options.TopicArgument,
    retention_age: RetentionAge = None,
    retention_bytes: RetentionBytes = None,
    until_acked: UntilAcked = False,
    default: Annotated[bool, typer.Option("--default", help="Restore the retention of the settings.")] = False,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Show the log retention of a topic; options set it."""
    wanted = _retention(retention_age, retention_bytes, until_acked)
    if default and wanted is not None:
        raise InvalidInput("--default excludes the other options: give it alone", field="default")
    asked = find_server(server, data, config)
    if asked is not None:
        path = topic_path(topic, "retention")
        put = None if wanted is None else wanted.model_dump()
        found = asked.delete(path) if default else asked.get(path) if put is None else asked.put(path, put)
    else:
        found = _own_retention(data, config, topic, wanted, change=default or wanted is not None)
    if as_json:
        output.print_json(found)
    else:
        whose = "the settings'" if found["retention"] is None else "its own"
        output.print_pairs([("topic", topic), *_retention_pairs(found["effective"]), ("retention is", whose)])


def _own_retention(
    data: Path | None, config: Path | None, topic: str, wanted: RetentionSettings | None, *, change: bool
) -> dict[str, Any]:
    from frazil.log.repair.survey import describe_topic

    settings = options.settings_on_disk(data, config)
    name = TopicName.parse(topic)
    own = describe_topic(LocalDisk(), settings.log_folder, name).retention
    if change:
        with _unserved(settings) as topics:
            topics.set_retention(topic, wanted)
        own = wanted
    effective = own or settings.wal.retention
    return {
        "topic": str(name),
        "retention": None if own is None else own.model_dump(),
        "effective": effective.model_dump(),
    }


@app.command()
def delete(
    topic: options.TopicArgument,
    yes: options.Yes = False,
    force: Annotated[
        bool, typer.Option("--force", help="Even if it has subscriptions or producers, which are deleted too.")
    ] = False,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Delete a topic with all its partitions and rows, permanently. Its table stays."""
    asked = find_server(server, data, config)
    if asked is not None:
        one = _description(asked.get(topic_path(topic)))
        messages = one["messages"] if one["tiers"] is None else one["tiers"]["log"]["rows"]
        partitions = len(one["partitions"])
    else:
        from frazil.log.repair.survey import describe_logs

        settings = options.settings_on_disk(data, config)
        logs = describe_logs(LocalDisk(), settings.log_folder, TopicName.parse(topic))
        messages = total([one.as_dict() for one in logs], "messages")
        partitions = len(logs) if logs[0].topic != topic else 0
    if not yes:
        rows = "an unknown number of messages" if messages is None else output.plural(messages, "message")
        parts = f" and its {output.plural(partitions, 'partition')}" if partitions else ""
        typer.confirm(f"Delete {topic}{parts} with {rows} for good?", abort=True, err=True)
    if asked is not None:
        messages = _delete_at(asked, topic, one, force=force)
    else:
        with _unserved(settings) as topics:
            topics.delete(TopicName.parse(topic), force=force)
    if as_json:
        output.print_json({"topic": topic, "deleted": True, "messages": messages})
    else:
        print(f"deleted topic {topic}")


def _delete_at(server: Server, topic: str, described: dict[str, Any], *, force: bool) -> int | None:
    """Delete a topic, or its partitions at each broker; partition 0 goes last. Return the number of messages."""
    query = {"force": "true" if force else "false"}
    try:
        return _count(server.delete(topic_path(topic), **query))
    except PartitionsElsewhere:
        names = [one["topic"] for one in reversed(described["partitions"])]
        deleted = [_count(server.delete(topic_path(name), **query)) for name in names]
        return None if None in deleted else sum(count for count in deleted if count is not None)


def _count(deleted: dict[str, Any]) -> int | None:
    found: int | None = deleted["messages"]
    return found


@contextlib.contextmanager
def _unserved(settings: Settings) -> Iterator[Topics]:
    """The topics of a folder that no server owns."""
    from frazil.node.opening import open_topics
    from frazil.node.topics.topics import Topics

    with open_topics(settings) as storage:
        yield Topics(storage)


def _retention(age: str | None, size: str | None, until_acked: bool) -> RetentionSettings | None:
    if age is None and size is None and not until_acked:
        return None
    from frazil.core.settings import RetentionSettings

    return RetentionSettings(
        until_acked=until_acked,
        age_ms=parse_duration_ms(age, "--retention-age") if age is not None else None,
        bytes=parse_bytes(size, "--retention-bytes") if size is not None else None,
    )


def _retention_pairs(kept: dict[str, Any]) -> list[tuple[str, Any]]:
    """Empty for a topic that stores nothing."""
    if not kept:
        return []
    return [
        ("retention age", "for ever" if kept["age_ms"] is None else f"{kept['age_ms']} ms"),
        ("retention acks", "until everyone has acknowledged" if kept["until_acked"] else "-"),
        ("retention size", "no limit" if kept["bytes"] is None else output.bytes_shown(kept["bytes"])),
    ]


def _held_back_pairs(held: dict[str, Any] | None) -> list[tuple[str, Any]]:
    if held is None:
        return []
    why = f"rows from offset {held['floor']} on" if held["error"] is None else f"everything: {held['error']}"
    return [("held back by", f"{held['guard']} since {output.time_shown(held['since_us'])}, {why}")]


def _tier_pairs(tiers: dict[str, Any] | None) -> list[tuple[str, Any]]:
    """Rows in each tier; empty for a topic that stores nothing or cannot be read."""
    if tiers is None:
        return []
    pairs: list[tuple[str, Any]] = [("in the log", _held(tiers["log"])), *_object_pairs(tiers.get("objects"))]
    table = tiers["table"]
    if table is None:
        return [*pairs, ("in the table", "not moved to a table")]
    pairs.append((f"in {table['table']}", _held(table)))
    if table["lag_rows"] is not None:
        age = "" if table["lag_ms"] is None else f", the oldest for {table['lag_ms']} ms"
        pairs.append(("table lacks", output.plural(table["lag_rows"], "row") + (age if table["lag_rows"] else "")))
    if table["error"] is not None:
        pairs.append(("table problem", table["error"]))
        pairs.append(("table seen", "never" if table["learnt_us"] is None else output.time_shown(table["learnt_us"])))
    return pairs


def _object_pairs(objects: dict[str, Any] | None) -> list[tuple[str, Any]]:
    if objects is None:
        return []
    lag = output.plural(objects["lag_rows"], "row")
    age = f", the oldest for {objects['lag_ms']} ms" if objects["lag_ms"] else ""
    pairs = [("in objects", _held(objects)), ("not uploaded", lag + age)]
    return pairs if objects["error"] is None else [*pairs, ("upload problem", objects["error"])]


def _held(tier: dict[str, Any]) -> str:
    if tier["end"] is None:
        return "not known"
    rows = "an unknown number of rows" if tier["rows"] is None else output.plural(tier["rows"], "row")
    if tier["first"] is None:
        return rows if tier["rows"] == 0 else f"{rows} up to offset {tier['end']}"
    size = "" if tier["bytes"] is None else f", {output.bytes_shown(tier['bytes'])}"
    return f"{rows}, offsets {tier['first']} up to {tier['end']}{size}"


def _columns_of(path: Path) -> pa.Schema:
    from frazil.cli.target.schema_file import load_schema

    return load_schema(path)


def _as_text(columns: pa.Schema) -> str:
    from frazil.core.rows.columns import schema_as_text

    return schema_as_text(columns)


def _kind(one: dict[str, Any]) -> str:
    return "?" if one["typed"] is None else "typed" if one["typed"] else "messages"
