"""Errors of a process that lacks something: the folder, an object of its own, or a package."""

from __future__ import annotations

from frazil.core.error import FrazilError


class UsedAfterFork(FrazilError):
    """Threads, locks and connections do not come along with a fork: only the process that made them can use them."""

    code = "used_after_fork"

    def __init__(self, what: str, made_in: int, pid: int, advice: str) -> None:
        super().__init__(
            f"{what} belongs to process {made_in}, and this is process {pid}, which was forked from it: {advice}",
            what=what,
            made_in=made_in,
            pid=pid,
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
