"""The topics of a log folder by file names alone: nothing is opened, locked or created.

    {log folder}/{namespace}/{topic}/topic.json          the topic's record
    {log folder}/{namespace}/{topic}/{offset:020d}.wal   its segments

Shell completion uses it, so this module imports nothing slow.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from frazil.core.disk import Disk, FolderEntry
from frazil.core.errors import InvalidName
from frazil.core.names import TopicName

TOPIC_FILE = "topic.json"
ENDS_FILE = "~ends"
SUFFIX = ".wal"


def topic_folder(folder: Path, name: TopicName, *file: str) -> Path:
    """Return the folder of a topic, or a file in it."""
    return folder.joinpath(name.namespace, name.topic, *file)


def topic_names(disk: Disk, folder: Path) -> list[TopicName]:
    """Return the topics of a log folder, sorted; empty if there is no folder yet."""
    try:
        return sorted(name for name, _ in walk_topics(disk, folder))
    except FileNotFoundError:
        return []


def names_in(disk: Disk, folder: Path, namespace: str) -> list[TopicName]:
    """Return the topics of one namespace."""
    return [name for name, _ in _walk_namespace(disk, folder, namespace)]


def walk_topics(disk: Disk, folder: Path) -> Iterator[tuple[TopicName, int]]:
    """Yield every topic in a log folder and the bytes of its segments; read-only, so any process may call it."""
    for namespace in disk.list(folder):
        if namespace.is_folder and not namespace.name.startswith("~"):
            yield from _walk_namespace(disk, folder, namespace.name)


def _walk_namespace(disk: Disk, folder: Path, namespace: str) -> Iterator[tuple[TopicName, int]]:
    for topic in _entries(disk, folder / namespace):
        if topic.is_folder:
            try:
                name = TopicName.parse(f"/{namespace}/{topic.name}")
            except InvalidName:
                continue  # not ours: no topic can have this name
            files = _entries(disk, topic_folder(folder, name))
            if any(entry.name == TOPIC_FILE or entry.name.endswith(SUFFIX) for entry in files):
                yield name, sum(entry.size_bytes for entry in files if entry.name.endswith(SUFFIX))


def _entries(disk: Disk, folder: Path) -> list[FolderEntry]:
    try:
        return disk.list(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []  # deleted by its owner meanwhile, or not ours
