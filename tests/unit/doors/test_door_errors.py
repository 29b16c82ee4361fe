"""The table of errors and statuses: every error has one at each door, and subclasses have that of their nearest."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from frazil.core import errors
from frazil.core.errors import FrazilError
from frazil.doors.errors import STATUSES, Status, status_of

INVALID, UNAVAILABLE = Status("INVALID_ARGUMENT", 400), Status("UNAVAILABLE", 503, "UNAVAILABLE")


def every_error(kind: type[FrazilError] = FrazilError) -> Iterator[type[FrazilError]]:
    yield kind
    for one in kind.__subclasses__():
        yield from every_error(one)


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (errors.SchemaMismatch, INVALID),
        (errors.BatchTooLarge, INVALID),
        (errors.RequestTooLarge, Status("INVALID_ARGUMENT", 413)),
        (errors.EncodingRefused, Status("INVALID_ARGUMENT", 415)),
        (errors.OffsetOutOfRange, Status("INVALID_ARGUMENT", 409)),
        (errors.IncompatibleSchema, Status("FAILED_PRECONDITION", 409)),
        (errors.TopicNotFound, Status("NOT_FOUND", 404)),
        (errors.PartitioningDiffers, Status("ALREADY_EXISTS", 409)),
        (errors.Overloaded, Status("RESOURCE_EXHAUSTED", 503, "UNAVAILABLE")),
        (errors.NotOwner, Status("UNAVAILABLE", 307, "UNAVAILABLE")),
        (errors.TopicUnavailable, UNAVAILABLE),
        (errors.PartitionsElsewhere, Status("FAILED_PRECONDITION", 409)),
        (errors.AnotherLeads, Status("UNAVAILABLE", 503)),
        (errors.TooManyJobs, Status("UNAVAILABLE", 429, "UNAVAILABLE")),
        (errors.OwnerUnreachable, UNAVAILABLE),
        (errors.Closed, UNAVAILABLE),
        (errors.LogFailed, Status("UNAVAILABLE", 503, "INTERNAL")),
        (errors.CorruptLog, Status("INTERNAL", 500)),
        (errors.RowsMissing, Status("INTERNAL", 409)),
        (errors.HostRefused, Status("INTERNAL", 421)),
    ],
)
def test_an_error_has_the_status_of_its_class_or_of_the_nearest_above(kind: type[FrazilError], status: Status) -> None:
    assert status_of(kind.__new__(kind)) == status


def test_what_passes_is_a_status_that_clients_answer_with_a_retry() -> None:
    for kind in every_error(errors.TryLater):
        assert status_of(kind.__new__(kind)).grpc in ("UNAVAILABLE", "RESOURCE_EXHAUSTED"), kind
        assert status_of(kind.__new__(kind)).http in (307, 429, 503), kind


def test_statuses_are_those_that_grpc_and_pyarrow_know() -> None:
    for status in STATUSES.values():
        assert status.grpc in grpc.StatusCode.__members__
        assert status.flight in ("UNKNOWN", "UNAVAILABLE", "INTERNAL", "UNAUTHENTICATED", "PERMISSION_DENIED")
