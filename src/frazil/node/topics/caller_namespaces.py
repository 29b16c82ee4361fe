"""Namespaces for one caller: errors tell nothing of those, or of topics in them, that it may not describe."""

from __future__ import annotations

from frazil.broker.topics.namespaces import Namespaces
from frazil.core import access
from frazil.core.access import Action, Right
from frazil.core.errors import NamespaceExists, NamespaceInUse
from frazil.core.principal import Principal
from frazil.node.access.gate import Gate
from frazil.node.access.hidden import refused


class CallerNamespaces:
    """All calls block. Doors check the right to each call, and filter the names that they show."""

    def __init__(self, namespaces: Namespaces, gate: Gate, who: Principal) -> None:
        self._namespaces = namespaces
        self._gate = gate
        self._who = who
        self.names = namespaces.names
        self.check_there = namespaces.check_there

    def create(self, name: str) -> None:
        try:
            self._namespaces.create(name)
        except NamespaceExists as error:
            right = Right(Action.CREATE, access.namespace(name))
            if self._gate.allows(self._who, Action.DESCRIBE, right.resource):
                raise
            raise refused(self._gate, self._who, right, error) from None

    def delete(self, name: str) -> None:
        """Delete only an empty namespace. The number of topics in it is of those that the caller may describe."""
        try:
            self._namespaces.delete(name)
        except NamespaceInUse as error:
            there = [access.topic(str(one)) for one in self._namespaces.topics(name)]
            shown = sum(self._gate.allows(self._who, Action.DESCRIBE, one) for one in there)
            if shown == len(there):
                raise
            if shown:
                raise NamespaceInUse(name, shown) from None
            raise refused(self._gate, self._who, Right(Action.DELETE, access.namespace(name)), error) from None
