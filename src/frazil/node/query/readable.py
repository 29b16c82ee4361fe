"""The tables that the caller of a query may read. Asked by name alone, before anything is looked up.

A query reads the table of a topic and the rows of its log, so it needs the right to read both, whether or not they
exist. What the caller may not read is not there: every way to name it gives the error of a missing table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from frazil.core.access import Action, Resource, ResourceKind
from frazil.core.errors import InvalidName
from frazil.core.names import TopicName
from frazil.lake.tables.schema import TableName
from frazil.node.access.portable import grants_from_json
from frazil.node.access.roles import decide

Readable = Callable[[TableName], bool]


def everything(_: TableName) -> bool:
    return True


def readable(rules: Iterable[Mapping[str, Any]] | None) -> Readable:
    """Return the decision by the rules of `Gate.rules_of`."""
    if rules is None:
        return everything
    grants = grants_from_json(rules)

    def may_read(table: TableName) -> bool:
        """The name is that of the table itself, which all partitions of its topic share: `_look` reads no other."""
        name = f"/{table.namespace}/{table.table}"
        try:
            TopicName.parse(name)
        except InvalidName:
            return False  # a slash in a part of the name would match patterns of another namespace
        kinds = (ResourceKind.TOPIC, ResourceKind.TABLE)
        return all(decide(grants, Action.READ, Resource(kind, name)) for kind in kinds)

    return may_read
