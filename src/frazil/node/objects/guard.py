"""A guard that allows removal only of rows that are in the object store: their upload was answered."""

from __future__ import annotations

from frazil.core.errors import LogFenced, ObjectsAhead, ObjectsDiffer, ObjectStoreUnavailable
from frazil.core.settings import AckLevel
from frazil.log.topic_log import TopicLog
from frazil.objects.known import ObjectsOfLogs
from frazil.objects.upload.uploader import Uploader

OBJECTS_GUARD = "objects"


class ObjectsGuard:
    """With objects enabled all logs are uploaded, also those that have a table: a log that lost its disk goes on behind
    its objects, so these must reach as far as the table does."""

    name = OBJECTS_GUARD
    holds_rows = True

    def __init__(self, objects: ObjectsOfLogs, uploader: Uploader, *, ends_with_process: bool = False) -> None:
        """`ends_with_process`: the store is in the memory of this process, and the folder is not."""
        self._ends_with_process = ends_with_process
        self._objects = objects
        self._uploader = uploader

    def concerns(self, log: TopicLog) -> bool:  # noqa: ARG002 - all of them
        return True

    def floor(self, log: TopicLog) -> int:
        """Return the end of the objects; raises `LogFenced` if the log belongs to somebody else by now,
        `ObjectsDiffer` if the objects have other rows, and `ObjectDamaged` if one with rows of the files is missing."""
        if self._ends_with_process:
            reason = "memory: its objects end with their process, so nothing is removed on their account"
            raise ObjectStoreUnavailable("objects.store.type", reason)
        if log.ack is AckLevel.OBJECT:  # it stores its rows itself
            if log.failed is not None:
                raise log.failed
            end = log.durable_end
            self._objects.of(log.log_id).confirm(log.first_offset)
            return end
        upload = self._uploader.upload_of(log)
        if isinstance(upload.error, LogFenced | ObjectsDiffer):
            raise upload.error
        upload.check_same()
        end = self._objects.of(log.log_id).confirm(log.first_offset).end
        if end > log.durable_end:
            raise ObjectsAhead(str(log.name), end, log.durable_end)
        return end

    def close(self) -> None:
        pass
