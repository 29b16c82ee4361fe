"""Errors of limits and access rules of a server. `frazil.core.errors` draws the whole tree."""

from __future__ import annotations

from frazil.core.errors.base import FrazilError, InvalidInput
from frazil.core.errors.disk import TryLater


class QueryTooLarge(InvalidInput):
    """The query needs more resources than its limit."""

    code = "query_too_large"

    def __init__(self, resource: str, limit: str) -> None:
        what = f"sql: the query needs more {resource} than its limit of {limit}; ask for fewer rows or columns"
        super().__init__(what, resource=resource, limit=limit)


class QueryTooLong(InvalidInput):
    """The query takes longer than its limit."""

    code = "query_too_long"

    def __init__(self, limit_seconds: int, setting: str) -> None:
        what = f"sql: no complete answer after {limit_seconds} s; ask for less, or raise {setting}"
        super().__init__(what, limit_seconds=limit_seconds, setting=setting)


class HostRefused(FrazilError):
    """The `Host` header is not a name of this server."""

    code = "host_refused"

    def __init__(self, host: str) -> None:
        what = f"{host[:100]!r} is not a name of this server; use its address, or add the name to http.allowed_hosts"
        super().__init__(what, host=host[:100])


class OriginRefused(FrazilError):
    """A page of another site requests a change."""

    code = "origin_refused"

    def __init__(self, origin: str) -> None:
        what = f"a page of {origin[:100]!r} may not change anything; to allow it, add its name to http.allowed_hosts"
        super().__init__(what, origin=origin[:100])


class TooManyCalls(TryLater):
    """The service is at its limit of concurrent calls."""

    code = "too_many_calls"

    def __init__(self, setting: str, limit: int) -> None:
        super().__init__(
            f"{limit} calls are under way, the limit of {setting}; try again, or raise it", setting=setting, limit=limit
        )


class NotSupported(FrazilError):
    """The protocol has this call, but Frazil does not implement it."""

    code = "not_supported"

    def __init__(self, call: str, reason: str) -> None:
        super().__init__(f"{call} is not supported: {reason}", call=call, reason=reason)
