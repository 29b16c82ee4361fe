"""The interface of a log to its colder tiers, which hold rows that its files no longer have."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from frazil.core.offsets import Place
from frazil.core.stored_objects import StoredObject
from frazil.core.tiers import Tier
from frazil.log.stats import ObjectSide, TableSide

if TYPE_CHECKING:
    from frazil.log.topic_log import TopicLog


class History(Tier, Protocol):
    """The coldest tier of a log: its table."""

    @property
    def table(self) -> str:
        """The name of the table, for messages."""
        ...

    def from_place(self, after: Place) -> Tier:
        """Return this tier for a walk that begins after a row with a known place.

        The place saves a search for files, and never changes which rows are read.
        """
        ...

    def places(self, offsets: Collection[int]) -> dict[int, Place]:
        """Return the places of those rows that are here."""
        ...

    def side(self, log: TopicLog, first: int, end: int) -> TableSide | None:
        """Return what this tier holds of a log with the rows from `first` up to `end`; None if the log has no table.

        It has a timeout of a few seconds, and never raises because the tier is unavailable.
        """
        ...


class ObjectFigures(Protocol):
    def side(self, log: TopicLog, *, ask: bool) -> ObjectSide:
        """Return what the objects hold of a log; without `ask`, as far as it is known. It never raises because the
        tier is unavailable."""
        ...


@dataclass(frozen=True, slots=True)
class ColderTiers:
    """The tiers colder than the files of a log: its table, and those between files and table."""

    table: History | None = None
    between: tuple[Tier, ...] = ()
    """Tiers between files and table, hottest first."""
    objects: Callable[[], tuple[StoredObject, ...]] = tuple
    """Return the uploaded objects of the log. It may ask their store, and raises its errors."""
    figures: ObjectFigures | None = None
    """The one of them that holds objects."""


ColderOf = Callable[["TopicLog"], ColderTiers]


def no_colder_tiers(log: TopicLog) -> ColderTiers:  # noqa: ARG001 - rows that its files no longer have are lost
    return ColderTiers()
