"""Lists in pages: `limit` entries `after` a name; `next` is what goes into `after` for the next page."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Query
from pydantic import BaseModel, Field

from frazil.serve.admin.paths import TOPIC_PATTERN

LIMIT_DEFAULT, LIMIT_MAX = 100, 1_000

Limit = Annotated[int, Query(ge=1, le=LIMIT_MAX, description="entries of a page")]
After = Annotated[str | None, Query(max_length=1_024, description="`next` of the page before")]
AfterTopic = Annotated[
    str | None, Query(json_schema_extra={"pattern": TOPIC_PATTERN}, description="`next` of the page before: a topic")
]

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Any)


class Page(BaseModel, Generic[Item]):
    items: list[Item]
    next: str | None = Field(description="for `after` of the next page; null on the last one")


def page(items: Iterable[Item], key: Callable[[Item], Key], limit: int, after: Key | None) -> tuple[list[Item], bool]:
    """The entries behind a key, in its order, and whether there are more. What is not shown is not sorted."""
    found = heapq.nsmallest(limit + 1, (one for one in items if after is None or key(one) > after), key=key)
    return found[:limit], len(found) > limit
