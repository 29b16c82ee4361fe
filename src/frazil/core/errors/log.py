"""Errors of the log's files, and of other files of the data folder that a newer version wrote."""

from __future__ import annotations

from frazil.core.errors.base import FrazilError


class LogFailed(FrazilError):
    """A sync or write failed: the state of the disk is unknown, so nothing more is acknowledged."""

    code = "log_failed"

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(
            f"the log of {topic} failed ({reason}) and accepts no more messages; "
            "reads continue, and a restart recovers everything that was acknowledged",
            topic=topic,
            reason=reason,
        )


SEE_CHECK = "; see `frazil log check`"


class CorruptLog(FrazilError):
    """The stored bytes are wrong; nothing is cut or skipped without `frazil log repair`."""

    code = "corrupt_log"

    def __init__(self, path: str, position: int, reason: str) -> None:
        what = f"{path} is corrupt at byte {position}: {reason}{SEE_CHECK}"
        super().__init__(what, path=path, position=position, reason=reason)


class NewerFormat(CorruptLog):
    """A newer version wrote the file. Nothing is wrong with it, and nothing may repair it: this version can't read it.

    Code that sets a corrupt topic aside and continues with the others does the same with this one.
    """

    code = "newer_format"

    def __init__(self, path: str, version: int, known: int) -> None:
        reason = (
            f"was made by a newer Frazil (format version {version}, and this one reads up to {known}); "
            "open it with that Frazil, or a later one"
        )
        fields = {"path": path, "position": 0, "reason": reason, "version": version, "known": known}
        FrazilError.__init__(self, f"{path} {reason}", **fields)
