"""Pagination: `limit` entries `after` a name; pass `next` as `after` for the next page."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Query
from pydantic import BaseModel, Field

from frazil.doors.http.admin.paths import TOPIC_PATTERN

LIMIT_DEFAULT, LIMIT_MAX = 100, 1_000

Limit = Annotated[int, Query(ge=1, le=LIMIT_MAX, description="entries per page")]
After = Annotated[str | None, Query(max_length=1_024, description="`next` of the previous page")]
AfterTopic = Annotated[
    str | None, Query(json_schema_extra={"pattern": TOPIC_PATTERN}, description="`next` of the previous page: a topic")
]

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Any)


class Page(BaseModel, Generic[Item]):
    items: list[Item]
    next: str | None = Field(description="for `after` of the next page; null on the last one")


def page(items: Iterable[Item], key: Callable[[Item], Key], limit: int, after: Key | None) -> tuple[list[Item], bool]:
    """Return the entries after a key, sorted, and whether there are more. Entries that are not shown are not sorted."""
    found = heapq.nsmallest(limit + 1, (one for one in items if after is None or key(one) > after), key=key)
    return found[:limit], len(found) > limit
