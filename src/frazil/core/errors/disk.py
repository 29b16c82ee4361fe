"""Temporary disk errors: nothing was written, and the same call may succeed later."""

from __future__ import annotations

from frazil.core.errors.base import FrazilError


class TryLater(FrazilError):
    """Nothing was written; the same call may succeed later."""

    code = "try_later"


class DiskFull(TryLater):
    code = "disk_full"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"no room on the disk for {path} ({reason}); publishing resumes once there is", path=path, reason=reason
        )


class DiskBudgetExceeded(TryLater):
    code = "disk_budget_exceeded"

    def __init__(self, used_bytes: int, wanted_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"the data folder holds {used_bytes} bytes and {wanted_bytes} more would pass disk_bytes_max = "
            f"{limit_bytes}; raise it, or shorten the retention",
            used_bytes=used_bytes,
            wanted_bytes=wanted_bytes,
            limit_bytes=limit_bytes,
        )


class ResourcesExhausted(TryLater):
    """The process or the system is temporarily out of descriptors or memory; the disk has not failed."""

    code = "resources_exhausted"

    def __init__(self, path: str, reason: str, retry_after_ms: int = 100) -> None:
        super().__init__(
            f"{path} can't be opened or written now ({reason}); nothing was written, try again in {retry_after_ms} ms, "
            "and raise the limit of open files (`ulimit -n`) if it happens again",
            path=path,
            reason=reason,
            retry_after_ms=retry_after_ms,
        )
