"""Errors of a process that lacks something: the folder, an object of its own, or a package."""

from __future__ import annotations

from frazil.core.errors.base import FrazilError
from frazil.core.errors.disk import TryLater


class UsedAfterFork(FrazilError):
    """Threads, locks and connections do not survive a fork: only the process that created them can use them."""

    code = "used_after_fork"

    def __init__(self, what: str, made_in: int, pid: int, advice: str) -> None:
        super().__init__(
            f"{what} belongs to process {made_in}, and this is process {pid}, which was forked from it: {advice}",
            what=what,
            made_in=made_in,
            pid=pid,
        )


class MetadataInUse(FrazilError):
    """Two servers on one part of the metadata store would overwrite each other's subscriptions."""

    code = "metadata_in_use"

    def __init__(self, store: str, prefix: str, owner: str, advice: str) -> None:
        super().__init__(
            f"metadata: {prefix} at {store} is used by {owner}; {advice}",
            store=store,
            prefix=prefix,
            owner=owner,
        )


class Fenced(TryLater):
    """A process that paused too long, or whose store was restored, no longer holds its lease."""

    code = "fenced"

    def __init__(self, key: str) -> None:
        super().__init__(f"metadata: {key} is no longer held by this process; nothing was changed", key=key)


class LocksNotSupported(FrazilError):
    """Without locks, two processes could write to one log."""

    code = "locks_not_supported"

    def __init__(self, folder: str, option: str | None = None) -> None:
        """`option` is a mount option that hides locks from other hosts."""
        why = "file locks do nothing on its file system"
        if option is not None:
            why = f"it is mounted with {option}, so that other hosts do not see its file locks"
        super().__init__(
            f"{folder}: {why}, and a second process could write to it too; use a file system with working locks",
            folder=folder,
            option=option,
        )


class FolderInUse(FrazilError):
    code = "folder_in_use"

    def __init__(self, folder: str, pid: int | None) -> None:
        owner = f"process {pid}" if pid else "another process"
        super().__init__(f"{folder} is in use by {owner}; stop it first, or use another folder", folder=folder, pid=pid)


class NotInstalled(FrazilError):
    """`hint` names the missing module and the command that installs it."""

    code = "not_installed"

    def __init__(self, hint: str) -> None:
        super().__init__(hint)
