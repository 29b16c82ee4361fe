"""Topic summary for listings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a verb that asks a server gets these fields from it, and needs no Arrow
    import pyarrow as pa

    from frazil.core.settings import RetentionSettings


@dataclass(frozen=True, slots=True)
class LogSummary:
    """A topic from its files. Unreadable fields are None, and `problem` says why."""

    topic: str
    log_id: str | None
    typed: bool | None
    messages: int | None
    first_offset: int
    end: int | None
    segments: int
    bytes: int
    created_us: int | None
    schema: pa.Schema | None
    retention: RetentionSettings | None
    ack: str | None
    problem: str | None

    def as_dict(self) -> dict[str, Any]:
        columns = None if self.schema is None else [_column(field) for field in self.schema]
        retention = None if self.retention is None else self.retention.model_dump()
        return {**asdict(self), "schema": columns, "retention": retention}


SUMMARY_FIELDS = tuple(field.name for field in fields(LogSummary))


def summed(topic: str, partitions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Summarize a partitioned topic from its partitions: sums, and common values."""
    problems = [f"{one['topic']}: {one['problem']}" for one in partitions if one["problem"]]
    created = [one["created_us"] for one in partitions if one["created_us"] is not None]
    return {
        "topic": topic,
        "log_id": None,
        **{name: _common(partitions, name) for name in ("typed", "schema", "retention", "ack")},
        **{name: total(partitions, name) for name in ("messages", "first_offset", "end", "segments", "bytes")},
        "created_us": min(created, default=None),
        "problem": "; ".join(problems) or None,
    }


def total(partitions: Sequence[Mapping[str, Any]], name: str) -> int | None:
    """Return None if it is unknown for one of them."""
    values = [one[name] for one in partitions]
    return None if None in values else sum(values)


def _common(partitions: Sequence[Mapping[str, Any]], name: str) -> Any:
    first = partitions[0][name]
    return first if all(one[name] == first for one in partitions) else None


def _column(field: pa.Field) -> dict[str, Any]:
    return {"name": field.name, "type": str(field.type), "nullable": field.nullable}
