"""Topics: listed, described, made and deleted; their partitions and their retention."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import pyarrow as pa
from fastapi import APIRouter, Query

from frazil.broker.broker import create_logs
from frazil.broker.deleting import delete_with_records
from frazil.broker.topic import BrokerTopic
from frazil.core.columns import columns_schema, schema_from_text
from frazil.core.disk import LocalDisk
from frazil.core.errors import (
    BrokerOff,
    CorruptLog,
    InvalidInput,
    PartitioningDiffers,
    TopicExists,
    TopicNotFound,
)
from frazil.core.names import TopicName
from frazil.core.settings import RetentionSettings
from frazil.log.storage import Storage
from frazil.log.summary import TopicSummary as Summary
from frazil.log.survey import summarize
from frazil.log.topic import TopicStats
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

Known = dict[TopicName, BrokerTopic]
_STATS = ("durable_end", "unsynced", "reserved_bytes", "cached_from", "queued_bytes")
_MORE_STATS = ("last_append_time_us", "torn_tail", "failed")


def topics_router(parts: AdminParts) -> APIRouter:
    router = APIRouter(prefix="/v1/topics", tags=["topics"])
    storage = parts.storage

    @router.get("", operation_id="list_topics", response_model=TopicPage, responses=errors(400, 503))
    def list_topics(limit: Limit = LIMIT_DEFAULT, after: AfterTopic = None) -> dict[str, Any]:
        """All topics in the order of their names."""
        known = _known(parts)
        last = None if after is None else TopicName.parse(after)
        there = {TopicName.parse(name) for name in storage.topics()}
        names, more = page(there | set(known or ()), lambda name: name, limit, last)
        shown = [found for name in names if (found := _summary(storage, known, name)) is not None]
        return {"items": shown, "next": str(names[-1]) if more else None}

    @router.post(
        "", operation_id="create_topic", status_code=201, response_model=MadeTopic, responses=errors(400, 409, 503)
    )
    async def create_topic(wanted: NewTopic) -> dict[str, Any]:
        """A new topic, or all its partitions: all of them, or none."""
        base = TopicName.parse(wanted.topic)
        names = [base] if not wanted.partitions else _partitions(base, wanted.partitions)
        retention = _settings(wanted.retention)
        await asyncio.to_thread(_check_free, storage, base, names)
        schema = _own_schema(wanted)
        if schema is not None:
            await asyncio.to_thread(storage.create_topic, str(base), schema=schema, retention=retention)
        elif parts.open_broker is not None:
            if not wanted.reliable and retention is not None:
                raise InvalidInput("retention: a non-reliable topic keeps nothing", field="retention")
            await parts.broker_parts().broker.create_topics(names, reliable=wanted.reliable, retention=retention)
        elif wanted.reliable:
            await asyncio.to_thread(create_logs, storage, names, retention)
        else:
            raise BrokerOff
        log_id = None
        if wanted.reliable and not wanted.partitions:
            log_id = (await asyncio.to_thread(storage.record, str(base))).log_id
        made = [str(name) for name in names] if wanted.partitions else []
        return {"topic": str(base), "log_id": log_id, "typed": schema is not None, "partitions": made}

    @router.get(
        "/{namespace}/{topic}",
        operation_id="describe_topic",
        response_model=TopicDescription,
        responses=errors(400, 404, 503),
    )
    def describe_topic(name: TopicPath) -> dict[str, Any]:
        """One topic: what it is, what its log holds, and who uses it."""
        found = _summary(storage, _known(parts), name)
        if found is None:
            raise _not_there(storage, name)
        base = name.partition_of()[0]
        return {**dict.fromkeys((*_STATS, *_MORE_STATS)), **found, "partition_of": None if base == name else str(base)}

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
        """Delete a topic and all rows of its log, for good. Its table stays."""
        found = await asyncio.to_thread(_summary, storage, _known(parts), name)
        try:
            if parts.open_broker is None:
                await asyncio.to_thread(delete_with_records, storage, str(name), force=force)
            else:
                await parts.broker_parts().broker.delete_topic(name, force=force)
        except TopicNotFound:
            raise await asyncio.to_thread(_not_there, storage, name) from None
        return {"topic": str(name), "deleted": True, "messages": None if found is None else found["messages"]}

    @router.get(
        "/{namespace}/{topic}/partitions",
        operation_id="list_partitions",
        response_model=NamePage,
        responses=errors(400, 404, 503),
    )
    def list_partitions(name: TopicPath, limit: Limit = LIMIT_DEFAULT, after: AfterTopic = None) -> dict[str, Any]:
        """The partitions of a topic in their order; the topic itself if it has none."""
        last = None if after is None else TopicName.parse(after).partition_of()[1]
        there = {TopicName.parse(one) for one in storage.topics()} | set(_known(parts) or ())
        numbers = {one.partition_of()[1]: one for one in there if one != name and one.partition_of()[0] == name}
        if not numbers and name not in there:
            raise TopicNotFound(str(name))
        if not numbers:
            return {"items": [str(name)], "next": None}
        found, more = page(numbers, lambda number: number, limit, last)
        names = [str(numbers[number]) for number in found]
        return {"items": names, "next": names[-1] if more else None}

    _add_retention(router, storage)
    return router


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
    """A copy, for it is looked at in threads too; None where the broker is off."""
    return None if parts.open_broker is None else dict(parts.broker_parts().broker.topics)


def _summary(storage: Storage, known: Known | None, name: TopicName) -> dict[str, Any] | None:
    """None if it is neither in the log nor known to the broker."""
    mine = None if known is None else known.get(name)
    told = {
        "reliable": mine is None or mine.reliable,
        "producers": None if known is None else 0 if mine is None else len(mine.producers),
        "subscriptions": None if known is None else 0 if mine is None else len(mine.subscriptions),
    }
    if mine is not None and not mine.reliable:
        return {**Summary(str(name), None, False, None, 0, None, 0, 0, None, None, None, None).as_dict(), **told}
    try:
        stats, record = storage.topic(str(name), create=False).stats(), storage.record(str(name))
    except TopicNotFound:
        return None
    except (CorruptLog, OSError):
        return {**summarize(LocalDisk(), storage.settings.log_folder, name).as_dict(), **told}
    summary = Summary(
        stats.topic, stats.log_id, stats.typed, stats.messages, stats.first_offset, stats.end, stats.segments,
        stats.bytes, record.created_us, record.schema, record.retention, stats.failed,
    )  # fmt: skip
    return {**summary.as_dict(), **_figures(stats), **told}


def _figures(stats: TopicStats) -> dict[str, Any]:
    return {name: getattr(stats, name) for name in (*_STATS, *_MORE_STATS)}


def _retention(storage: Storage, name: TopicName) -> dict[str, Any]:
    own = storage.record(str(name)).retention
    effective = own or storage.settings.wal.retention
    return {
        "topic": str(name),
        "retention": None if own is None else own.model_dump(),
        "effective": effective.model_dump(),
    }


def _settings(wanted: Retention | None) -> RetentionSettings | None:
    if wanted is None:
        return None
    if wanted.until_acked and (wanted.age_ms is not None or wanted.bytes is not None):
        raise InvalidInput("until_acked: excludes age_ms and bytes; give one or the other", field="until_acked")
    return wanted.as_settings()


def _partitions(base: TopicName, count: int) -> list[TopicName]:
    if base.partition_of()[0] != base:
        raise InvalidInput(f"topic: {base} is itself named as a partition; use a name without -part-N", field="topic")
    return [TopicName.parse(f"{base}-part-{number}") for number in range(count)]


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


def _check_free(storage: Storage, base: TopicName, names: Sequence[TopicName]) -> None:
    """Also of topics that the broker does not know of."""
    there = {TopicName.parse(name) for name in storage.topics()}
    for name in names:
        if name in there:
            raise TopicExists(str(name))
    divided = any(one != base and one.partition_of()[0] == base for one in there)
    if divided:
        raise PartitioningDiffers(str(base), "with partitions")
    whole = names[0].partition_of()[0]
    if whole != names[0] and whole in there:
        raise PartitioningDiffers(str(whole), "without partitions")


def _not_there(storage: Storage, name: TopicName) -> TopicNotFound:
    parts = [one for one in storage.topics() if TopicName.parse(one).partition_of()[0] == name]
    return TopicNotFound(str(name), f"it has partitions: name one of them, as {parts[0]}" if parts else None)
