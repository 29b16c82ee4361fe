"""The change of a topic's log for the one that was built to follow its table, in steps that a crash may cut anywhere.

    {log folder}/~renumber/{log id}      the new log while it is built: a topic's folder, with record and segments
    {log folder}/~renumbering            {"topic", "former", "log_id"}: it is built, and takes the former's place
    {log folder}/~renumbered/{log id}    the former log, as it was; never read or removed again

Writing `~renumbering` is the decision. Whoever owns the folder next carries it out before it looks at any topic; what
was built without it is removed.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from frazil.core.disk import Disk
from frazil.core.errors import CorruptLog
from frazil.core.names import TopicName
from frazil.log.folder import ENDS_FILE, topic_folder
from frazil.log.records import needs_room, read_record, room_can_wait, write_record

BUILD_FOLDER = "~renumber"
DECISION_FILE = "~renumbering"
KEPT_FOLDER = "~renumbered"

_log = logging.getLogger("frazil.log")


def build_folder(folder: Path, log_id: str) -> Path:
    return folder / BUILD_FOLDER / log_id


def kept_folder(folder: Path, log_id: str) -> Path:
    return folder / KEPT_FOLDER / log_id


def decide(disk: Disk, folder: Path, topic: TopicName, former: str, log_id: str) -> None:
    """From now on the new log is the topic's; durable when it returns."""
    write_record(disk, folder / DECISION_FILE, {"topic": str(topic), "former": former, "log_id": log_id})


def finish_renumbering(disk: Disk, folder: Path) -> None:
    """Carry out what was decided, or remove what was only built. For the owner of the folder; again after a crash."""
    path = folder / DECISION_FILE
    content = read_record(disk, path)
    if content is not None:
        topic, former, log_id = _decision(path, content)
        with needs_room(folder):
            _change(disk, folder, topic, former, log_id)
        with room_can_wait():  # without room the record stays, and is tidied up by the next owner
            _forget_end(disk, folder / ENDS_FILE, former)
            disk.remove(path)
            disk.sync_folder(folder)
        _log.info("%s is renumbered: its log is %s now, %s is kept aside", topic, log_id, former)
    remove_unfinished(disk, folder)


def remove_unfinished(disk: Disk, folder: Path) -> None:
    """What was built for no decision. What can't be removed harms nobody."""
    try:
        if _has(disk, folder, BUILD_FOLDER):
            _remove_all(disk, folder / BUILD_FOLDER)
            disk.sync_folder(folder)
    except OSError as error:
        _log.warning("%s is not removed yet, and is tried again: %s", folder / BUILD_FOLDER, error)


def _decision(path: Path, content: dict[str, Any]) -> tuple[TopicName, str, str]:
    try:
        return TopicName.parse(content["topic"]), str(content["former"]), str(content["log_id"])
    except KeyError as error:
        raise CorruptLog(str(path), 0, f"not a record of a renumbering ({error})") from None


def _change(disk: Disk, folder: Path, topic: TopicName, former: str, log_id: str) -> None:
    """As long as the new log is where it was built, what is in its place is the former one."""
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
    """The former log is expected no longer."""
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
