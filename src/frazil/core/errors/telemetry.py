"""Errors of telemetry: tenants and their datasets. `frazil.core.errors` draws the whole tree."""

from __future__ import annotations

from frazil.core.errors.base import FrazilError, InvalidInput


class TenantNotFound(FrazilError):
    """There is no such tenant, or it is being deleted."""

    code = "tenant_not_found"

    def __init__(self, tenant: str) -> None:
        super().__init__(
            f"there is no tenant {tenant!a:.80}; create it with `frazil tenants create`, or fix its name",
            tenant=tenant[:80],
        )


class TenantExists(FrazilError):
    code = "tenant_exists"

    def __init__(self, tenant: str, *, is_being_deleted: bool = False) -> None:
        advice = "is being deleted; finish with `frazil tenants delete`" if is_being_deleted else "already exists"
        super().__init__(f"the tenant {tenant} {advice}", tenant=tenant, is_being_deleted=is_being_deleted)


class TenantInUse(FrazilError):
    """A tenant whose topics have subscriptions or producers is deleted only if the caller forces it."""

    code = "tenant_in_use"

    def __init__(self, tenant: str, subscriptions: int, producers: int) -> None:
        super().__init__(
            f"topics of the tenant {tenant} have {subscriptions} subscription(s) and {producers} producer(s), which "
            "would be deleted with it; add --force, or force=true over HTTP, to delete it anyway",
            tenant=tenant,
            subscriptions=subscriptions,
            producers=producers,
        )


class DatasetNotFound(FrazilError):
    code = "dataset_not_found"

    def __init__(self, tenant: str, dataset: str) -> None:
        super().__init__(
            f"the tenant {tenant} has no dataset {dataset!a:.80}; its first request creates it",
            tenant=tenant,
            dataset=dataset[:80],
        )


class TelemetryOff(FrazilError):
    """This server knows no tenants."""

    code = "telemetry_off"

    def __init__(self) -> None:
        super().__init__(
            "telemetry is off, and this needs it; set `telemetry.enabled: true` and start `frazil serve` again",
            setting="telemetry.enabled",
        )


class RequestTooLarge(InvalidInput):
    """The request has more than a limit allows; nothing of it was stored."""

    code = "request_too_large"

    def __init__(self, what: str, unit: str, setting: str, limit: int) -> None:
        super().__init__(
            f"{what} more than {limit} {unit}; send smaller requests, or raise {setting}", setting=setting, limit=limit
        )


class EncodingRefused(InvalidInput):
    """The type or the encoding of the content is none that this call takes."""

    code = "encoding_refused"

    def __init__(self, field: str, given: str, known: str) -> None:
        super().__init__(f"{field}: {given!a:.80} is not supported; send {known}", field=field, known=known)


class TraceNotFound(FrazilError):
    code = "trace_not_found"

    def __init__(self, trace_id: str, dataset: str) -> None:
        super().__init__(
            f"{dataset} has no span of the trace {trace_id}; see `frazil traces list`, --tenant and --dataset",
            trace_id=trace_id,
            dataset=dataset,
        )
