"""Tables that the mover has created: removed again if the tenant that they were created for was deleted meanwhile.

The deletion of a tenant deletes its topics, then its tables, and proves that nothing is left. A mover that listed the
topics before may create a table after that proof. So the mover asks for the topic again after it has created a table:
either the deletion has seen the table, or the mover sees that the topic is gone.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable

from frazil.core.errors import FrazilError
from frazil.core.names import TopicName
from frazil.lake.tables.schema import TableName
from frazil.lake.tables.store import TableStore
from frazil.node.movers.log_source import LogSource
from frazil.pipeline.move.moved_topic import MovedTopic

HasTenant = Callable[[str], bool]
"""Whether the tenant that owns a namespace is there, and nobody deletes it; true for a namespace of no tenant."""

_log = logging.getLogger("frazil.pipeline")


class CreatedTables:
    def __init__(self, tables: TableStore, has_tenant: HasTenant) -> None:
        self._tables = tables
        self._has_tenant = has_tenant
        self._unchecked: dict[TableName, TopicName] = {}
        """Of tables that were created, and maybe are to be removed: the topic of each."""
        self._logged: dict[TableName, str] = {}
        """Why they could not be removed; each reason is logged once."""

    def check(self, topics: Iterable[MovedTopic], source: LogSource) -> set[TopicName]:
        """Check what was created for one of these topics, and return those that are no longer listed.

        What cannot be asked or removed now is left to the next call. A topic that another broker owns by now has its
        tenant, and keeps its table.
        """
        created = self._tables.take_created()
        if created:
            owners: dict[TableName, TopicName] = {}
            for topic in topics:
                with contextlib.suppress(FrazilError):  # its columns do not fit: nothing was created for it
                    owners |= dict.fromkeys(topic.tables, topic.info.topic)
            self._unchecked |= {table: owners[table] for table in created if table in owners}
        if not self._unchecked:
            return set()
        there = {info.topic for info in source.logs()}
        gone = set(self._unchecked.values()) - there
        for table, name in list(self._unchecked.items()):
            if name in there or self._is_settled(table, name):
                del self._unchecked[table]
        return gone

    def _is_settled(self, table: TableName, topic: TopicName) -> bool:
        """Remove the table of a topic that is gone, unless the tenant is there; returns False if that is not known."""
        try:
            if not self._has_tenant(topic.namespace):
                self._tables.remove_empty(table)
        except FrazilError as error:
            if self._logged.get(table) != error.message:
                self._logged[table] = error.message
                _log.warning("%s was created for %s, which is gone, and is looked at later: %s", table, topic, error)
            return False
        self._logged.pop(table, None)
        return True
