"""The columns that a row has of its resource and of its scope."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from frazil.telemetry.decode.attributes import Attributes, attributes_of
from frazil.telemetry.decode.columns import widened
from frazil.telemetry.decode.gather import Gather
from frazil.telemetry.decode.levels import Indices, Items, lengths
from frazil.telemetry.decode.lifting import lifted_column
from frazil.telemetry.schemas.lifted import Lifted, LiftedFrom
from frazil.telemetry.schemas.shared import ENTITY_REF

SERVICE_NAME = "service.name"


class Context:
    """The resources and scopes of items, decoded once for all their rows."""

    def __init__(self, items: Items, gather: Gather) -> None:
        self._gather = gather
        resource = items.resources.field("resource")
        scope = items.scopes.field("scope")
        self._resource_attributes = attributes_of(resource.field("attributes"))
        self._scope_attributes = attributes_of(scope.field("attributes"))
        self._of_resource = {
            "service_name": _service_names(self._resource_attributes),
            **self._resource_attributes.columns("resource_attributes"),
            "resource_dropped_attributes_count": widened(resource.field("dropped_attributes_count")),
            "resource_entity_refs": _entity_refs(resource.field("entity_refs")),
            "resource_schema_url": items.resources.field("schema_url"),
        }
        self._of_scope = {
            "scope_name": scope.field("name"),
            "scope_version": scope.field("version"),
            **self._scope_attributes.columns("scope_attributes"),
            "scope_dropped_attributes_count": widened(scope.field("dropped_attributes_count")),
            "scope_schema_url": items.scopes.field("schema_url"),
        }

    def columns(self, resource: Indices, scope: Indices) -> dict[str, pa.Array]:
        """Return the columns of rows, given the resource and the scope of each."""
        return {**self._gather.take(self._of_resource, resource), **self._gather.take(self._of_scope, scope)}

    def names(self, resource: Indices, scope: Indices) -> dict[str, pa.Array]:
        """Return the columns of rows that have names only."""
        scopes = {name: self._of_scope[name] for name in ("scope_name", "scope_version")}
        services = {"service_name": self._of_resource["service_name"]}
        return {**self._gather.take(services, resource), **self._gather.take(scopes, scope)}

    def lifted_columns(
        self, lifted: Sequence[Lifted], own: Attributes, resource: Indices, scope: Indices
    ) -> dict[str, pa.Array]:
        """Return the columns of lifted attributes of rows that have the attributes `own` themselves."""
        columns = {}
        for one in lifted:
            match one.source:
                case LiftedFrom.ITEM:
                    columns[one.column] = lifted_column(own, one)
                case LiftedFrom.RESOURCE:
                    columns |= self._gather.take({one.column: lifted_column(self._resource_attributes, one)}, resource)
                case LiftedFrom.SCOPE:
                    columns |= self._gather.take({one.column: lifted_column(self._scope_attributes, one)}, scope)
        return columns


def _service_names(attributes: Attributes) -> pa.StringArray:
    """Return the text of `service.name`, empty if there is none."""
    entries = attributes.entries_of(SERVICE_NAME)
    texts = pa.concat_arrays([attributes.texts, pa.array([""])])
    return texts.take(pa.array(np.where(entries < 0, len(texts) - 1, entries)))


def _entity_refs(lists: pa.ListArray) -> pa.ListArray:
    """Return references to entities, null where there are none: few senders have them."""
    if not len(lists.values):
        return pa.nulls(len(lists), pa.list_(ENTITY_REF))
    kept = (lengths(lists) > 0).tolist()
    found = [refs if keep else None for refs, keep in zip(lists.to_pylist(), kept, strict=True)]
    return pa.array(found, pa.list_(ENTITY_REF))
