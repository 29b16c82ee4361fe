"""Logs that have gone back behind their tables, as far as the status of the mover tells."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from frazil.core.errors import TableAhead


def tables_ahead(
    told: Mapping[str, Any] | None, ends: Mapping[str, int], former: Collection[str] = ()
) -> dict[str, str]:
    """By topic, what is wrong. `ends` has the durable end of each log that is known, by log id.

    What is told of `former` logs, which were renumbered since, counts no more.

    The mover has met it, or it shows by the ends alone: a mover that has not looked since told of more rows than the
    log has now.
    """
    found: dict[str, str] = {}
    for name, topic in (told or {}).get("topics", {}).items():
        if topic.get("log_id") in former:
            continue
        end = ends.get(topic.get("log_id"))
        if topic.get("error_code") == TableAhead.code:
            found[name] = str(topic.get("error"))
        elif end is not None and int(topic.get("table_end", 0)) > end:
            found[name] = TableAhead(name, str(topic.get("table")), int(topic["table_end"]), end).message
    return found
