"""Topics: listed, described, made and deleted; their partitions and their retention."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import pyarrow as pa
from fastapi import APIRouter, Query

from frazil.broker.deleting import delete_with_records
from frazil.broker.known import KnownTopics
from frazil.broker.making import create_logs
from frazil.core.columns import columns_schema, schema_from_text
from frazil.core.disk import LocalDisk
from frazil.core.errors import (
    BrokerOff,
    CorruptLog,
    InvalidInput,
    TopicNotFound,
)
from frazil.core.names import TopicName
from frazil.core.partitions import partition_names, partitions_of, topic_or_partitions
from frazil.core.settings import RetentionSettings
from frazil.log.check import read_ends
from frazil.log.dropped import dropped_ranges
from frazil.log.stats import LogSide, TopicStats, readable, topic_stats
from frazil.log.storage import Storage
from frazil.log.summary import TopicSummary as Summary
from frazil.log.summary import summed, total
from frazil.log.survey import summarize
from frazil.serve.admin.models import (
    DeletedTopic,
    MadeTopic,
    NamePage,
    NewTopic,
    Retention,
    TopicDescription,
    TopicPage,
    TopicRetention,
)
from frazil.serve.admin.openapi import errors
from frazil.serve.admin.paging import LIMIT_DEFAULT, AfterTopic, Limit, page
from frazil.serve.admin.parts import AdminParts
from frazil.serve.admin.paths import TopicPath
from frazil.topics.floor import ToldStatus
from frazil.topics.tiers import told_ranges

Known = KnownTopics
_STATS = ("durable_end", "unsynced", "reserved_bytes", "cached_from", "queued_bytes")
_MORE_STATS = ("last_append_time_us", "torn_tail", "failed")


def topics_router(parts: AdminParts) -> APIRouter:
    router = APIRouter(prefix="/v1/topics", tags=["topics"])
    _add_list(router, parts)
    _add_create(router, parts)
    _add_describe(router, parts)
    _add_delete(router, parts)
    _add_partitions(router, parts)
    _add_retention(router, parts.storage)
    return router


def _add_list(router: APIRouter, parts: AdminParts) -> None:
    storage = parts.storage

    @router.get("", operation_id="list_topics", response_model=TopicPage, responses=errors(400, 503))
    def list_topics(limit: Limit = LIMIT_DEFAULT, after: AfterTopic = None) -> dict[str, Any]:
        """All topics in the order of their names. What their tables hold is what the mover told last."""
        known = _known(parts)
        last = None if after is None else TopicName.parse(after)
        names, more = page(storage.names() | set(dict(known or {})), lambda name: name, limit, last)
        told = _told(storage)
        shown = [found for name in names if (found := _summary(storage, known, name, told)) is not None]
        return {"items": shown, "next": str(names[-1]) if more else None}


def _add_create(router: APIRouter, parts: AdminParts) -> None:
    storage = parts.storage

    @router.post(
        "", operation_id="create_topic", status_code=201, response_model=MadeTopic, responses=errors(400, 409, 503)
    )
    async def create_topic(wanted: NewTopic) -> dict[str, Any]:
        """A new topic, or all its partitions: all of them, or none."""
        base = TopicName.parse(wanted.topic)
        names = partition_names(base, wanted.partitions) if wanted.partitions else [base]
        retention = _settings(wanted.retention)
        schema = _own_schema(wanted)
        if schema is not None:
            await asyncio.to_thread(storage.create_topic, str(base), schema=schema, retention=retention)
        elif parts.open_broker is not None:
            if not wanted.reliable and retention is not None:
                raise InvalidInput("retention: a non-reliable topic keeps nothing", field="retention")
            broker = parts.broker_parts().broker
            await broker.create_topics(base, wanted.partitions, reliable=wanted.reliable, retention=retention)
        elif wanted.reliable:
            await asyncio.to_thread(create_logs, storage, base, wanted.partitions, retention)
        else:
            raise BrokerOff
        log_id = None
        if wanted.reliable and not wanted.partitions:
            log_id = (await asyncio.to_thread(storage.record, str(base))).log_id
        made = [str(name) for name in names] if wanted.partitions else []
        return {"topic": str(base), "log_id": log_id, "typed": schema is not None, "partitions": made}


def _add_describe(router: APIRouter, parts: AdminParts) -> None:
    @router.get(
        "/{namespace}/{topic}",
        operation_id="describe_topic",
        response_model=TopicDescription,
        responses=errors(400, 404, 503),
    )
    def describe_topic(name: TopicPath) -> dict[str, Any]:
        """One topic: what it is, what its log and its table hold, and who uses it; or the sums of its partitions."""
        found = _described(parts.storage, _known(parts), name)
        if found is None:
            raise TopicNotFound(str(name))
        base = name.partition_of()[0]
        return {
            **dict.fromkeys((*_STATS, *_MORE_STATS, "held_back", "tiers")),
            "partitions": [],
            **found,
            "partition_of": None if base == name else str(base),
        }


def _add_delete(router: APIRouter, parts: AdminParts) -> None:
    storage = parts.storage

    @router.delete(
        "/{namespace}/{topic}",
        operation_id="delete_topic",
        response_model=DeletedTopic,
        responses=errors(400, 404, 409, 503),
    )
    async def delete_topic(
        name: TopicPath,
        force: Annotated[bool, Query(description="also if it has subscriptions or producers: they go with it")] = False,
    ) -> dict[str, Any]:
        """Delete a topic, or all its partitions, and all rows of the log, for good. The table stays."""
        messages = await asyncio.to_thread(_log_rows, storage, name)
        if parts.open_broker is None:
            await asyncio.to_thread(delete_with_records, storage, str(name), force=force)
        else:
            await parts.broker_parts().broker.delete_topic(name, force=force)
        return {"topic": str(name), "deleted": True, "messages": messages}


def _add_partitions(router: APIRouter, parts: AdminParts) -> None:
    @router.get(
        "/{namespace}/{topic}/partitions",
        operation_id="list_partitions",
        response_model=NamePage,
        responses=errors(400, 404, 503),
    )
    def list_partitions(name: TopicPath, limit: Limit = LIMIT_DEFAULT, after: AfterTopic = None) -> dict[str, Any]:
        """The partitions of a topic in their order; the topic itself if it has none."""
        last = None if after is None else TopicName.parse(after).partition_of()[1]
        there = _family(parts.storage, _known(parts), name)
        numbers = {one.partition_of()[1]: one for one in there if one != name and one.partition_of()[0] == name}
        if not numbers and name not in there:
            raise TopicNotFound(str(name))
        if not numbers:
            return {"items": [str(name)], "next": None}
        found, more = page(numbers, lambda number: number, limit, last)
        names = [str(numbers[number]) for number in found]
        return {"items": names, "next": names[-1] if more else None}


def _add_retention(router: APIRouter, storage: Storage) -> None:
    path = "/{namespace}/{topic}/retention"

    @router.get(path, operation_id="get_retention", response_model=TopicRetention, responses=errors(400, 404, 503))
    def get_retention(name: TopicPath) -> dict[str, Any]:
        """How long the log keeps rows."""
        return _retention(storage, name)

    @router.put(path, operation_id="set_retention", response_model=TopicRetention, responses=errors(400, 404, 503))
    def set_retention(name: TopicPath, wanted: Retention) -> dict[str, Any]:
        """A retention of the topic's own, in place of the one that it has."""
        storage.set_retention(str(name), _settings(wanted))
        return _retention(storage, name)

    @router.delete(path, operation_id="reset_retention", response_model=TopicRetention, responses=errors(400, 404, 503))
    def reset_retention(name: TopicPath) -> dict[str, Any]:
        """Back to the retention of the settings."""
        storage.set_retention(str(name), None)
        return _retention(storage, name)


def _known(parts: AdminParts) -> Known | None:
    """None where the broker is off. Looked at in threads too: what walks through it takes a copy first."""
    return None if parts.open_broker is None else parts.broker_parts().broker.topics


def _family(storage: Storage, known: Known | None, name: TopicName) -> set[TopicName]:
    return storage.family(name) | (set() if known is None else set(known.family(name)))


def _told(storage: Storage) -> Mapping[str, Any] | None:
    """What the mover told last."""
    return None if storage.settings.data is None else ToldStatus(storage.settings).read()


def _summary(
    storage: Storage,
    known: Known | None,
    name: TopicName,
    told: Mapping[str, Any] | None = None,
    *,
    ask_table: bool = False,
) -> dict[str, Any] | None:
    """None if it is neither in the log nor known to the broker. `told` is for a list, which asks no catalog."""
    mine = None if known is None else known.get(name)
    used = {
        "reliable": mine is None or mine.reliable,
        "producers": None if known is None else 0 if mine is None else len(mine.producers),
        "subscriptions": None if known is None else 0 if mine is None else len(mine.subscriptions),
    }
    if mine is not None and not mine.reliable:
        return {**Summary(str(name), None, False, None, 0, None, 0, 0, None, None, None, None).as_dict(), **used}
    try:
        log, record = storage.topic(str(name), create=False).log, storage.record(str(name))
    except TopicNotFound:
        return None
    except (CorruptLog, OSError):
        disk, folder = LocalDisk(), storage.settings.log_folder
        return {**summarize(disk, folder, name, read_ends(disk, folder)[0]).as_dict(), **used}
    stats = topic_stats(log, ask_table=ask_table)
    summary = Summary(
        stats.topic, stats.log_id, stats.typed, stats.messages, stats.first_offset, stats.end, stats.segments,
        stats.bytes, record.created_us, record.schema, record.retention, stats.failed,
    )  # fmt: skip
    if ask_table:
        return {**summary.as_dict(), **_figures(stats), **used}
    side = LogSide(stats.first_offset, stats.end, dropped_ranges(log.removal.dropped))
    held = told_ranges(told, stats.topic, stats.log_id, side)
    return {**summary.as_dict(), **asdict(readable(side.first, side.end, held)), **used}


def _described(storage: Storage, known: Known | None, name: TopicName) -> dict[str, Any] | None:
    """Its summary, or the sums of its partitions; None if it is not there."""
    own = _summary(storage, known, name, ask_table=True)
    if own is not None:
        return own
    names = partitions_of(name, _family(storage, known, name))
    told = _told(storage) if names else None
    found = [one for each in names if (one := _summary(storage, known, each, told)) is not None]
    if not found:
        return None
    return {
        **summed(str(name), found),
        **{figure: total(found, figure) for figure in ("producers", "subscriptions")},
        "reliable": all(one["reliable"] for one in found),
        "partitions": found,
    }


def _figures(stats: TopicStats) -> dict[str, Any]:
    held = None if stats.held_back is None else asdict(stats.held_back)
    figures = {name: getattr(stats, name) for name in (*_STATS, *_MORE_STATS)}
    return {**figures, "held_back": held, "tiers": asdict(stats.tiers)}


def _log_rows(storage: Storage, name: TopicName) -> int | None:
    """How many rows go with the log of a topic or its partitions; None if there is none, or one can't be opened."""
    names = topic_or_partitions(name, storage.family(name))
    try:
        logs = [storage.topic(str(one), create=False).log for one in names]
    except (TopicNotFound, CorruptLog, OSError):
        return None
    return sum(topic_stats(log, ask_table=False).messages for log in logs)


def _retention(storage: Storage, name: TopicName) -> dict[str, Any]:
    own = storage.record(str(name)).retention
    effective = own or storage.settings.wal.retention
    return {
        "topic": str(name),
        "retention": None if own is None else own.model_dump(),
        "effective": effective.model_dump(),
    }


def _settings(wanted: Retention | None) -> RetentionSettings | None:
    return None if wanted is None else wanted.as_settings()


def _own_schema(wanted: NewTopic) -> pa.Schema | None:
    """None of a message topic."""
    if wanted.columns is None and wanted.arrow_schema is None:
        return None
    if wanted.columns is not None and wanted.arrow_schema is not None:
        raise InvalidInput("arrow_schema: it says the same as schema; give one of them", field="arrow_schema")
    if wanted.partitions or not wanted.reliable:
        field = "partitions" if wanted.partitions else "reliable"
        raise InvalidInput(f"{field}: a typed topic has no partitions and is reliable", field=field)
    if wanted.arrow_schema is not None:
        return schema_from_text(wanted.arrow_schema, "arrow_schema")
    return columns_schema([one.model_dump() for one in wanted.columns or ()], "schema")
