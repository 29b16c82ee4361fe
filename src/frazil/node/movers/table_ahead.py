"""Logs that are behind their tables, according to the mover's status."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from frazil.core.errors import TableAhead


def tables_ahead(
    report: Mapping[str, Any] | None, ends: Mapping[str, int], former: Collection[str] = ()
) -> dict[str, str]:
    """Return the problem by topic. `ends` has the durable end of each known log, by log id.

    Reports about `former` logs, which were renumbered since, are ignored.

    Either the mover has detected it, or the ends show it: an earlier report has more rows than the log has now.
    """
    found: dict[str, str] = {}
    for name, topic in (report or {}).get("topics", {}).items():
        if topic.get("log_id") in former:
            continue
        end = ends.get(topic.get("log_id"))
        if topic.get("error_code") == TableAhead.code:
            found[name] = str(topic.get("error"))
        elif end is not None and int(topic.get("table_end", 0)) > end:
            found[name] = TableAhead(name, str(topic.get("table")), int(topic["table_end"]), end).message
    return found
