"""Errors of the object store that holds log segments; `frazil.core.errors` draws the whole tree."""

from __future__ import annotations

from frazil.core.errors.base import FrazilError
from frazil.core.errors.disk import TryLater
from frazil.core.errors.log import CorruptLog


class ObjectStoreUnavailable(TryLater):
    """The object store did not answer, or refused; the same call may succeed later.

    A write may have taken effect: object names are created once, so the caller can find out.
    """

    code = "object_store_unavailable"

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            f"the object store does not answer for {name} ({reason}); see the settings in `objects`",
            name=name,
            reason=reason,
        )


class LogFenced(TryLater):
    """Another process has taken the log over in the object store. Nothing was acknowledged: ask the owner."""

    code = "log_fenced"

    def __init__(
        self, topic: str, log_id: str, owner: str, address: str, epoch: int, retry_after_ms: int = 100
    ) -> None:
        """`epoch` is the one in which `owner` stores the log's objects."""
        at = f" at {address}" if address else ""
        super().__init__(
            f"{topic} belongs to {owner}{at} since epoch {epoch} of its objects; this process stores no more of it",
            topic=topic,
            log_id=log_id,
            owner=owner,
            address=address,
            epoch=epoch,
            retry_after_ms=retry_after_ms,
        )


class ObjectsAhead(FrazilError):
    """The object store has rows that the log does not have, as after its folder was restored from an older backup."""

    code = "objects_ahead"

    def __init__(self, topic: str, objects_end: int, log_end: int) -> None:
        super().__init__(
            f"{topic}: the object store has rows up to offset {objects_end}, and the log ends at {log_end}: it was set "
            "back, as by an older backup, or the folder is a copy; nothing of it is uploaded, and none of its objects "
            "is removed. Use the folder that uploaded them, or create the topic under another name",
            topic=topic,
            objects_end=objects_end,
            log_end=log_end,
        )


class ObjectsDiffer(FrazilError):
    """The object store has other rows at the same offsets, as after a copy of the folder was opened elsewhere."""

    code = "objects_differ"

    def __init__(self, topic: str, objects_end: int) -> None:
        super().__init__(
            f"{topic}: the row before offset {objects_end} is another one in the object store: a copy of the folder "
            "was opened elsewhere with the same store; nothing of it is uploaded. Use the folder that uploaded last, "
            "or create the topic under another name",
            topic=topic,
            objects_end=objects_end,
        )


class ObjectDamaged(CorruptLog):
    """An object is missing, cut or changed. Nothing is skipped."""

    code = "object_damaged"


class RestoreRefused(FrazilError):
    """A data folder is not restored: it has topics, or it is not clear which log of the store is whose."""

    code = "restore_refused"
