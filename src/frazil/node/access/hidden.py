"""Conflicts with what the caller may not know of: refused like a missing right.

What exists can be in the way of a new name: the same topic, the other form of it, one that differs in case, a schema
that the new one does not fit. The error names it. A caller that may not describe it gets the error of a caller that may
not create instead, which is the same whatever is in the way. Only the audit log has the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from frazil.core import access
from frazil.core.access import Action, Resource, Right
from frazil.core.errors import FrazilError, InvalidInput, InvalidName, PermissionDenied, SubjectMismatch, TopicExists
from frazil.core.principal import Principal
from frazil.node.access.gate import Gate


def refused(gate: Gate, who: Principal, right: Right, error: FrazilError) -> PermissionDenied:
    """Return the refusal of a caller without the right, which the audit log gets with the actual error."""
    return gate.refusal(who, *right, reason=f"hidden from it: {error.message}")


@contextmanager
def schema_conflicts_hidden(gate: Gate, who: Principal, subject: str) -> Iterator[None]:
    """Register a schema within: only a caller that may describe its subject learns what that has already."""
    try:
        yield
    except InvalidInput as error:
        right = Right(Action.CREATE, access.schema(subject))
        if "subject" not in error.fields or gate.allows(who, Action.DESCRIBE, right.resource):
            raise  # the new schema itself is wrong, or the caller knows the others
        raise refused(gate, who, right, error) from None


def topic_in_the_way(error: FrazilError) -> Resource | None:
    """Return the topic that an error of a creation tells of."""
    name = None
    if isinstance(error, TopicExists | SubjectMismatch):
        name = error.fields["topic"]
    elif isinstance(error, InvalidName):
        name = error.fields.get("conflicts_with")
    return None if name is None else access.topic(name)
