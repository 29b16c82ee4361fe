"""Which topics a log folder holds, told by the names of its files alone: nothing is opened, locked or made.

    {log folder}/{namespace}/{topic}/topic.json          what the topic is
    {log folder}/{namespace}/{topic}/{offset:020d}.wal   its segments

Shells that complete a name ask here, so this module needs nothing that takes long to import.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from frazil.core.disk import Disk, Entry
from frazil.core.errors import InvalidName
from frazil.core.names import TopicName

TOPIC_FILE = "topic.json"
ENDS_FILE = "~ends"
SUFFIX = ".wal"


def topic_folder(folder: Path, name: TopicName, *file: str) -> Path:
    """The folder of a topic, or a file in it."""
    return folder.joinpath(name.namespace, name.topic, *file)


def topic_names(disk: Disk, folder: Path) -> list[TopicName]:
    """The topics of a log folder, sorted; none where there is no folder yet."""
    try:
        return sorted(name for name, _ in walk_topics(disk, folder))
    except FileNotFoundError:
        return []


def names_in(disk: Disk, folder: Path, namespace: str) -> list[TopicName]:
    """Those of one namespace."""
    return [name for name, _ in _walk_namespace(disk, folder, namespace)]


def walk_topics(disk: Disk, folder: Path) -> Iterator[tuple[TopicName, int]]:
    """Every topic in a log folder and the bytes of its segments; only looks, so anyone may call it."""
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


def _entries(disk: Disk, folder: Path) -> list[Entry]:
    try:
        return disk.list(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []  # deleted by its owner while we looked, or not ours
