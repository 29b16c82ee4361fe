"""Partitioned topics: `<topic>-part-0` up to `<topic>-part-(N-1)`, as Danube's clients make and find them.

Partition 0 is made last and deleted last. A topic that has others but not that one was left by a crash: creating it
again completes it, provided that the partitions that are there are empty.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable

from frazil.core.errors import InvalidInput, PartitioningDiffers, TopicExists, TopicNotFound
from frazil.core.names import TopicName

PARTITIONS_MAX = 100


def partition_names(base: TopicName, count: int) -> list[TopicName]:
    """The names of `count` partitions in their order; `InvalidInput` if there can't be such."""
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= PARTITIONS_MAX:
        raise InvalidInput(f"partitions: must be 1 to {PARTITIONS_MAX}, not {count!r:.40}", field="partitions")
    if base.partition_of()[0] != base:
        raise InvalidInput(f"topic: {base} is itself named as a partition; use a name without -part-N", field="topic")
    return [TopicName.parse(f"{base}-part-{number}") for number in range(count)]


def check_form(name: TopicName, there: Container[TopicName], *, has_partitions: bool) -> None:
    """A new topic must not be the other form of one that is there. `has_partitions` is said of `name` itself."""
    base = name.partition_of()[0]
    if base != name and base in there:
        raise PartitioningDiffers(str(base), "without partitions")
    if base == name and has_partitions:
        raise PartitioningDiffers(str(name), "with partitions")


def partitions_to_make(base: TopicName, count: int, there: Iterable[TopicName]) -> list[TopicName]:
    """Those that are missing, in the order to make them; `TopicExists` if the topic is complete, or has others.

    The caller checks that those that are there already are empty and of the same kind.
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
    """The partitions of a topic that are there, in their order."""
    held = [name for name in there if name != base and name.partition_of()[0] == base]
    return sorted(held, key=lambda name: name.partition_of()[1])


def topic_not_found(name: TopicName, there: Iterable[TopicName]) -> TopicNotFound:
    """For calls on one log: of a topic with partitions it says to name one of them."""
    partitions = partitions_of(name, there)
    reason = f"it has partitions: name one of them, as {partitions[0]}" if partitions else None
    return TopicNotFound(str(name), reason)


def topic_or_partitions(name: TopicName, there: Collection[TopicName]) -> list[TopicName]:
    """What a call on all of a topic is about: its partitions, or the topic itself, also if it is not there."""
    return [name] if name in there else partitions_of(name, there) or [name]
