"""Partitioned topics: `<topic>-part-0` up to `<topic>-part-(N-1)`, as Danube's clients create and find them.

Partition 0 is created last and deleted last. A topic that has other partitions but not partition 0 was left by a crash:
creating it again completes it, provided that the existing partitions are empty.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable

from frazil.core.errors import InvalidInput, PartitioningDiffers, TopicExists, TopicNotFound
from frazil.core.names import TopicName

PARTITIONS_MAX = 100


def partition_names(base: TopicName, count: int) -> list[TopicName]:
    """Return the names of `count` partitions in order; raises `InvalidInput` if the base or count is invalid."""
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= PARTITIONS_MAX:
        raise InvalidInput(f"partitions: must be 1 to {PARTITIONS_MAX}, not {count!r:.40}", field="partitions")
    if base.partition_of()[0] != base:
        raise InvalidInput(f"topic: {base} is itself named as a partition; use a name without -part-N", field="topic")
    return [TopicName.parse(f"{base}-part-{number}") for number in range(count)]


def check_form(name: TopicName, there: Container[TopicName], *, has_partitions: bool) -> None:
    """Check that a topic of this name does not exist in the other form. `has_partitions` is about `name` itself."""
    base = name.partition_of()[0]
    if base != name and base in there:
        raise PartitioningDiffers(str(base), "without partitions")
    if base == name and has_partitions:
        raise PartitioningDiffers(str(name), "with partitions")


def partitions_to_make(base: TopicName, count: int, there: Iterable[TopicName]) -> list[TopicName]:
    """Return the missing partitions in creation order; raises `TopicExists` if the topic is complete or has other ones.

    The caller checks that the existing partitions are empty and of the same kind.
    """
    wanted = partition_names(base, count)
    held = {name for name in there if name.partition_of()[0] == base}
    if base in held:
        raise PartitioningDiffers(str(base), "without partitions")
    if wanted[0] in held:
        raise TopicExists(str(wanted[0]))
    others = sorted(held.difference(wanted))
    if others:
        raise TopicExists(str(others[0]))
    return [name for name in reversed(wanted) if name not in held]


def partitions_of(base: TopicName, there: Iterable[TopicName]) -> list[TopicName]:
    """Return the existing partitions of a topic, in order."""
    held = [name for name in there if name != base and name.partition_of()[0] == base]
    return sorted(held, key=lambda name: name.partition_of()[1])


def topic_not_found(name: TopicName, there: Iterable[TopicName]) -> TopicNotFound:
    """Return the error for a call on one log; for a partitioned topic it asks for a partition's name."""
    partitions = partitions_of(name, there)
    reason = f"it has partitions: name one of them, as {partitions[0]}" if partitions else None
    return TopicNotFound(str(name), reason)


def topic_or_partitions(name: TopicName, there: Collection[TopicName]) -> list[TopicName]:
    """Return the partitions of a topic, or the topic itself, even if it does not exist."""
    return [name] if name in there else partitions_of(name, there) or [name]
