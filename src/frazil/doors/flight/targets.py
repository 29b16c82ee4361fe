"""What a call names: a topic, or a table of a tenant.

    ["/namespace/topic"]        a topic, always
    ["namespace", "topic"]      a topic; in a call for a tenant only if the namespace has a dot
    ["dataset", "table"]        in a call for a tenant: names of datasets have no dot
    ["table"]                   likewise, in the dataset of the header `x-frazil-dataset`, else `default`

A call is for a tenant if it names one in the header `x-frazil-tenant`, or if its caller belongs to one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from frazil.core.access import Action
from frazil.core.errors import InvalidInput
from frazil.core.names import TopicName
from frazil.doors.admission import who
from frazil.doors.calls import calling
from frazil.node.node import Node
from frazil.node.telemetry.tables import TableTarget
from frazil.node.telemetry.telemetry import DATASET_HEADER, TENANT_HEADER
from frazil.telemetry.signals import NAME_LENGTH_MAX
from frazil.telemetry.tables import is_table


class Named(NamedTuple):
    """A topic, and the table that the call named it by."""

    topic: TopicName
    table: TableTarget | None = None


class Targets:
    """Reads the headers of the current call. All its methods are for the task of that call."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def tenant(self) -> str | None:
        """Return the tenant that the call is for; None if it is for none."""
        caller = who()
        return _header(TENANT_HEADER) or self._node.telemetry(caller).own_tenant(caller)

    def is_tenant_given(self) -> bool:
        """Whether the call itself names the tenant: then it is about nothing else."""
        return _header(TENANT_HEADER) is not None

    def of_path(self, path: Sequence[str], action: Action) -> Named:
        """Return what a path names; raises `PermissionDenied` for a table that the caller has no right to."""
        is_for_tenant = self.tenant() is not None
        if len(path) == 1 and (path[0].startswith("/") or not is_for_tenant):
            return Named(TopicName.parse(path[0]))
        if len(path) == 2 and ("." in path[0] or not is_for_tenant):
            return Named(TopicName.parse(f"/{path[0]}/{path[1]}"))
        if len(path) in (1, 2) and is_for_tenant:
            return self.table(path[0] if len(path) == 2 else None, path[-1], action)
        raise InvalidInput(
            'descriptor: a path is ["namespace", "topic"] or ["/namespace/topic"], '
            f'or for a tenant ["dataset", "table"], not {len(path)} parts',
            field="path",
        )

    def table(self, dataset: str | None, table: str, action: Action) -> Named:
        """Return a table of the tenant of the call, by default of the dataset of its header."""
        caller = who()
        found = self._node.telemetry(caller).table(
            caller, _header(TENANT_HEADER), dataset or _header(DATASET_HEADER), table, action
        )
        return Named(found.topic, found)

    def named(self, topic: str | None, dataset: str | None, table: str | None, action: Action) -> str:
        """Return the topic of a request that names it, or a table."""
        if (topic is None) == (table is None) or (dataset is not None and table is None):
            raise InvalidInput("topic: give the name of a topic, or that of a table and its dataset", field="topic")
        return topic if topic is not None else str(self.table(dataset, table or "", action).topic)

    def path_of(self, name: TopicName, tenant: str | None) -> list[str]:
        """Return the path that names a topic in calls for this tenant, or for none."""
        of_tenant, _, dataset = name.namespace.partition(".")
        if of_tenant == tenant and "." not in dataset and is_table(name.topic):
            return [dataset, name.topic]
        return [str(name)] if tenant is not None and not dataset else [name.namespace, name.topic]


def _header(name: str) -> str | None:
    """Return the value of a header of the current call; None without one."""
    context = calling.get(None)
    given = [] if context is None else [value for key, value in context.invocation_metadata() or () if key == name]
    if len(given) > 1:
        raise InvalidInput(f"{name}: is there more than once", field=name)
    if given and (len(given[0]) > NAME_LENGTH_MAX or not isinstance(given[0], str)):
        raise InvalidInput(f"{name}: has more than {NAME_LENGTH_MAX} characters", field=name)
    return given[0] if given else None
