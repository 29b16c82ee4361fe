"""Replace a topic's log by the one that was built to follow its table, in crash-safe steps.

    {log folder}/~renumber/{log id}      the new log while it is built: a topic's folder, with record and segments
    {log folder}/~renumbering            {"topic", "former", "log_id"}: the new log is built and replaces the former one
    {log folder}/~renumbered/{log id}    the former log, unchanged; never read or removed again

Writing `~renumbering` is the decision. The next owner of the folder executes it before it opens any topic; a log that
was built without it is removed.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from frazil.core.disk import Disk
from frazil.core.errors import CorruptLog
from frazil.core.names import TopicName
from frazil.log.folder.layout import ENDS_FILE, topic_folder
from frazil.log.format.records import ignore_full_disk, read_record, temporary_disk_errors, write_record

BUILD_FOLDER = "~renumber"
DECISION_FILE = "~renumbering"
KEPT_FOLDER = "~renumbered"

_log = logging.getLogger("frazil.log")


def build_folder(folder: Path, log_id: str) -> Path:
    return folder / BUILD_FOLDER / log_id


def kept_folder(folder: Path, log_id: str) -> Path:
    return folder / KEPT_FOLDER / log_id


def decide(disk: Disk, folder: Path, topic: TopicName, former: str, log_id: str) -> None:
    """Record that the new log replaces the former one; durable on return."""
    write_record(disk, folder / DECISION_FILE, {"topic": str(topic), "former": former, "log_id": log_id})


def finish_renumbering(disk: Disk, folder: Path) -> None:
    """Execute the decision, or remove an undecided log. For the owner of the folder; repeated after a crash."""
    path = folder / DECISION_FILE
    content = read_record(disk, path)
    if content is not None:
        topic, former, log_id = _decision(path, content)
        with temporary_disk_errors(folder):
            _change(disk, folder, topic, former, log_id)
        with ignore_full_disk():  # on a full disk the record stays, and the next owner removes it
            _forget_end(disk, folder / ENDS_FILE, former)
            disk.remove(path)
            disk.sync_folder(folder)
        _log.info("%s is renumbered: its log is %s now, %s is kept aside", topic, log_id, former)
    remove_unfinished(disk, folder)


def remove_unfinished(disk: Disk, folder: Path) -> None:
    """Remove logs that were built without a decision. A failure is harmless."""
    try:
        if _has(disk, folder, BUILD_FOLDER):
            _remove_all(disk, folder / BUILD_FOLDER)
            disk.sync_folder(folder)
    except OSError as error:
        _log.warning("%s is not removed yet, and is retried: %s", folder / BUILD_FOLDER, error)


def _decision(path: Path, content: dict[str, Any]) -> tuple[TopicName, str, str]:
    try:
        return TopicName.parse(content["topic"]), str(content["former"]), str(content["log_id"])
    except KeyError as error:
        raise CorruptLog(str(path), 0, f"not a record of a renumbering ({error})") from None


def _change(disk: Disk, folder: Path, topic: TopicName, former: str, log_id: str) -> None:
    """Swap the folders. While the new log is where it was built, the topic's folder is the former one."""
    place, built, kept = topic_folder(folder, topic), build_folder(folder, log_id), kept_folder(folder, former)
    if _has(disk, built.parent, built.name):
        if _has(disk, place.parent, place.name):
            disk.make_folder(kept.parent)
            disk.rename(place, kept)
        disk.sync_folder(kept.parent)
        disk.sync_folder(place.parent)
        disk.rename(built, place)
        disk.sync_folder(built.parent)
    disk.sync_folder(place.parent)


def _forget_end(disk: Disk, path: Path, former: str) -> None:
    """Remove the former log from `~ends`."""
    ends = read_record(disk, path)
    if ends is not None and former in ends:
        write_record(disk, path, {log_id: known for log_id, known in ends.items() if log_id != former})


def _has(disk: Disk, folder: Path, name: str) -> bool:
    try:
        return any(entry.name == name for entry in disk.list(folder))
    except FileNotFoundError:
        return False


def _remove_all(disk: Disk, folder: Path) -> None:
    for entry in disk.list(folder):
        if entry.is_folder:
            _remove_all(disk, folder / entry.name)
        else:
            disk.remove(folder / entry.name)
    disk.remove_folder(folder)
