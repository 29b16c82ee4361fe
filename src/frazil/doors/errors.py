"""The table of errors and their statuses at each door.

An error has the status of its class, else that of the nearest base class. gRPC statuses are given by name, so that the
HTTP door needs no gRPC. Clients retry after UNAVAILABLE and RESOURCE_EXHAUSTED, so these are for errors that a retry
can fix. Danube clients look the topic up again before they retry; HTTP clients follow the redirect to the owner.
"""

from __future__ import annotations

from typing import NamedTuple

from frazil.core.errors import (
    AnotherLeads,
    BrokerNotFound,
    BrokerOff,
    Closed,
    ClusterOff,
    DatasetNotFound,
    DiskBudgetExceeded,
    DiskFull,
    EncodingRefused,
    FrazilError,
    GrantNotFound,
    HostRefused,
    IncompatibleSchema,
    InvalidInput,
    JobNotFound,
    LakeUnavailable,
    LogFailed,
    LossNotAccepted,
    MetadataUnavailable,
    NamespaceExists,
    NamespaceInUse,
    NamespaceNotFound,
    NotInstalled,
    NotOwner,
    NotSupported,
    OffsetOutOfRange,
    OriginRefused,
    OutcomeUnknown,
    Overloaded,
    PartitionsElsewhere,
    PermissionDenied,
    QuotaExceeded,
    RequestTooLarge,
    SchemaNotFound,
    SecurityOff,
    SubjectMismatch,
    SubscriptionNotFound,
    SubscriptionTaken,
    TableNotFound,
    TableRefused,
    TelemetryOff,
    TenantExists,
    TenantInUse,
    TenantNotFound,
    TooManyCalls,
    TooManyJobs,
    TopicDiffers,
    TopicExists,
    TopicInUse,
    TopicNotFound,
    TryLater,
    Unauthenticated,
)

INTERNAL_MESSAGE = "internal error; see the server's log"
"""The message to clients for an error that is not a `FrazilError`."""


class Status(NamedTuple):
    """`flight` is sent with Arrow's headers, with which PyArrow knows only UNKNOWN, UNAVAILABLE, INTERNAL,
    UNAUTHENTICATED and PERMISSION_DENIED."""

    grpc: str
    http: int
    flight: str = "UNKNOWN"


_INVALID = Status("INVALID_ARGUMENT", 400)
_NOT_FOUND = Status("NOT_FOUND", 404)
_EXISTS = Status("ALREADY_EXISTS", 409)
_CONFLICT = Status("FAILED_PRECONDITION", 409)
_UNAVAILABLE = Status("UNAVAILABLE", 503, "UNAVAILABLE")
_EXHAUSTED = Status("RESOURCE_EXHAUSTED", 503, "UNAVAILABLE")

STATUSES: dict[type[FrazilError], Status] = {
    FrazilError: Status("INTERNAL", 500),
    InvalidInput: _INVALID,
    OffsetOutOfRange: Status("INVALID_ARGUMENT", 409),
    RequestTooLarge: Status("INVALID_ARGUMENT", 413),
    EncodingRefused: Status("INVALID_ARGUMENT", 415),
    IncompatibleSchema: _CONFLICT,
    SubjectMismatch: _CONFLICT,
    TopicNotFound: _NOT_FOUND,
    SubscriptionNotFound: _NOT_FOUND,
    NamespaceNotFound: _NOT_FOUND,
    SchemaNotFound: _NOT_FOUND,
    TableNotFound: _NOT_FOUND,
    JobNotFound: _NOT_FOUND,
    GrantNotFound: _NOT_FOUND,
    TenantNotFound: _NOT_FOUND,
    DatasetNotFound: _NOT_FOUND,
    TenantExists: _EXISTS,
    TenantInUse: _CONFLICT,
    TelemetryOff: _CONFLICT,
    TopicExists: _EXISTS,
    NamespaceExists: _EXISTS,
    TopicDiffers: _CONFLICT,
    TopicInUse: _CONFLICT,
    NamespaceInUse: _CONFLICT,
    BrokerNotFound: _NOT_FOUND,
    ClusterOff: _CONFLICT,
    LossNotAccepted: _CONFLICT,
    PartitionsElsewhere: _CONFLICT,
    BrokerOff: Status("INTERNAL", 409),
    SecurityOff: _CONFLICT,
    TableRefused: Status("INTERNAL", 409),
    SubscriptionTaken: Status("PERMISSION_DENIED", 409),
    Unauthenticated: Status("UNAUTHENTICATED", 401, "UNAUTHENTICATED"),
    PermissionDenied: Status("PERMISSION_DENIED", 403, "PERMISSION_DENIED"),
    HostRefused: Status("INTERNAL", 421),
    OriginRefused: Status("INTERNAL", 403),
    NotSupported: Status("UNIMPLEMENTED", 500),
    NotInstalled: Status("UNIMPLEMENTED", 501),
    TryLater: _UNAVAILABLE,
    NotOwner: Status("UNAVAILABLE", 307, "UNAVAILABLE"),
    AnotherLeads: Status("UNAVAILABLE", 503),
    TooManyJobs: Status("UNAVAILABLE", 429, "UNAVAILABLE"),
    Overloaded: _EXHAUSTED,
    QuotaExceeded: Status("RESOURCE_EXHAUSTED", 429, "UNAVAILABLE"),
    TooManyCalls: _EXHAUSTED,
    DiskFull: _EXHAUSTED,
    DiskBudgetExceeded: _EXHAUSTED,
    LakeUnavailable: Status("UNAVAILABLE", 503),
    MetadataUnavailable: Status("UNAVAILABLE", 503),
    LogFailed: Status("UNAVAILABLE", 503, "INTERNAL"),
    Closed: _UNAVAILABLE,
    OutcomeUnknown: Status("UNAVAILABLE", 500),
}
"""An unknown outcome is to Danube's clients what the end of their broker is: they send again, at least once."""


def status_of(error: FrazilError) -> Status:
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)
