"""The levels of a request: resources have scopes, scopes have items (spans, log records, metrics)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

Indices = np.ndarray


@dataclass(frozen=True)
class Items:
    """The items of all requests, in the order of the wire, and where each belongs."""

    values: pa.StructArray
    scope: Indices
    scopes: pa.StructArray
    resource: Indices
    resources: pa.StructArray
    request: Indices
    index: Indices
    """Position within the request."""


def items_of(resources: pa.ListArray, scopes_field: str, items_field: str) -> Items:
    """Return the items of requests, given the resources of each request."""
    resource_values, request_of_resource = unnested(resources)
    scope_values, resource_of_scope = unnested(resource_values.field(scopes_field))
    values, scope = unnested(scope_values.field(items_field))
    resource = resource_of_scope[scope]
    request = request_of_resource[resource]
    return Items(values, scope, scope_values, resource, resource_values, request, index_within(request))


def unnested(lists: pa.ListArray) -> tuple[pa.Array, Indices]:
    """Return all elements of lists, and the list of each. The array is whole and without nulls, as `ptars` makes it."""
    return lists.values, np.repeat(np.arange(len(lists)), lengths(lists))


def lengths(lists: pa.ListArray) -> np.ndarray:
    return np.diff(lists.offsets.to_numpy())


def index_within(groups: Indices) -> Indices:
    """Return the position of each element within its group. Elements of a group follow one another."""
    count = len(groups)
    if not count:
        return np.zeros(0, np.int64)
    starts = np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]])
    return np.arange(count) - np.repeat(starts, np.diff(np.r_[starts, count]))
