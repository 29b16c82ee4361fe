"""What a request says beside its body: the tenant, the dataset, the credentials; from gRPC metadata or HTTP headers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from frazil.core.errors import InvalidInput
from frazil.core.principal import ANONYMOUS, LOCAL, Principal
from frazil.doors.owner_channels import FORWARDED
from frazil.node.access.gate import AUTHORIZATION
from frazil.node.telemetry.telemetry import DATASET_HEADER, TENANT_HEADER
from frazil.telemetry.signals import Signal

_OF_REQUEST = frozenset({TENANT_HEADER, DATASET_HEADER, AUTHORIZATION, FORWARDED})


class Export(NamedTuple):
    """One export request without its body. Headers may be missing."""

    door: str
    signal: Signal
    who: Principal
    tenant: str | None
    dataset: str | None
    authorization: str | None
    may_forward: bool


def export_of(
    door: str, signal: Signal, who: Principal, headers: Iterable[tuple[str, str | bytes]], *, has_certificate: bool
) -> Export:
    """Read the headers of a request, whose names are in lower case; raises `InvalidInput` for one that is there twice.

    A request can be forwarded only with all credentials of its sender: nobody has the key of its certificate, and the
    token of this host's data folder is of no use elsewhere.
    """
    given: dict[str, str] = {}
    for name, value in headers:
        if name in _OF_REQUEST:
            if name in given:
                raise InvalidInput(f"{name}: send it once", field=name)
            given[name] = value if isinstance(value, str) else value.decode("latin-1")
    may_forward = FORWARDED not in given and not has_certificate and who is not LOCAL
    return Export(
        door,
        signal,
        who,
        given.get(TENANT_HEADER),
        given.get(DATASET_HEADER),
        given.get(AUTHORIZATION),
        may_forward,
    )


def sender_of(who: Principal, peer: str) -> str:
    """Return the name under which a sender shares the limits: the caller, or its host while nobody is known."""
    return peer.rpartition(":")[0] if who is ANONYMOUS else who.name
