"""The chain of a log's objects: which of the listed names count, in which order. A pure decision from the names alone.

Within an epoch objects follow each other without a gap. An epoch ends where the next one begins: what an earlier owner
wrote at or beyond that offset was never acknowledged, and does not count. So a listing is enough to know the chain.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from frazil.objects.names import ObjectName


def chain_of(names: Iterable[ObjectName]) -> list[ObjectName]:
    """Return the objects of one log that count, by offset; an epoch's first object may share its offset with none."""
    by_epoch = {
        epoch: sorted(each, key=lambda name: name.first)
        for epoch, each in itertools.groupby(sorted(names), key=lambda name: name.epoch)
    }
    chain: list[ObjectName] = []
    end: int | None = None
    for epoch in sorted(by_epoch, reverse=True):
        counted = [name for name in by_epoch[epoch] if end is None or name.first < end]
        chain = counted + chain
        start = by_epoch[epoch][0].first
        end = start if end is None else min(end, start)
    return chain


def ignored(names: Iterable[ObjectName]) -> list[ObjectName]:
    """Return the objects that do not count: fences, and what a former owner wrote in vain."""
    listed = list(names)
    counted = set(chain_of(listed))
    return [name for name in listed if name not in counted]
