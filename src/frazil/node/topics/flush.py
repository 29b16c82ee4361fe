"""Wait until the rows of a topic are in its table.

The mover's last report is a hint: the catalog is asked when it says so, and now and then, since a mover may have nobody
to report to.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from frazil.core.errors import Closed, TryLater
from frazil.node.movers.table_progress import MoverStatus, table_end
from frazil.node.threads import Threads

if TYPE_CHECKING:
    from frazil.log.topic_log import TopicLog

LOOK_SECONDS, ASK_SECONDS = 0.1, 5.0
"""Between two looks at the last report, and between two questions to the catalog without one."""
ASKING_MAX = 2
"""Threads that ask the catalog: it may hang."""


class TableFlushes:
    """Used on one event loop."""

    def __init__(self, status: MoverStatus) -> None:
        self._status = status
        self._asking = Threads("frazil-flush", ASKING_MAX)

    def close(self) -> None:
        self._asking.close()

    async def until(self, log: TopicLog, offset: int, seconds_max: float, ended: asyncio.Event) -> int:
        """Return the end of the table once it has all rows below `offset`; raises `TryLater` after `seconds_max`.

        It ends early, with the end that is known then, if `ended` is set.
        """
        loop = asyncio.get_running_loop()
        deadline, ask_at, known = loop.time() + seconds_max, loop.time(), -1
        while not ended.is_set():
            reported = table_end(self._status.read(), log)
            if reported >= offset or loop.time() >= ask_at:
                known = await self._asking.run(_committed, log)
                ask_at = loop.time() + (LOOK_SECONDS if reported >= offset else ASK_SECONDS)
                if known >= offset:
                    return known
            if log.closed:
                raise Closed(f"the log of {log.name}")
            left = deadline - loop.time()
            if left <= 0:
                raise TryLater(
                    f"{log.name}: its table had the rows below {max(known, 0)} after {seconds_max:.1f} s, not those "
                    f"below {offset}; ask again",
                    topic=str(log.name),
                    table_end=max(known, 0),
                    offset=offset,
                )
            await _wait(ended, min(LOOK_SECONDS, left))
        return known


async def _wait(ended: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(ended.wait(), seconds)
    except TimeoutError:
        return


def _committed(log: TopicLog) -> int:
    """Return the end of the log in its table, by the catalog; -1 if there is none, or if it does not answer."""
    side = None if log.history is None else log.history.side(log, log.first_offset, log.durable_end)
    if side is None or side.tier.error is not None or side.tier.end is None:
        return -1
    return side.tier.end
