"""One object of the object tier: a range of a log, stored under a name that is used once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from frazil.core.offsets import OffsetRange


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An uploaded piece of a log: the rows from `first` up to `end`. The first object of an epoch may have none."""

    log_id: str
    epoch: int
    first: int
    end: int
    size_bytes: int
    etag: str | None = None
    crc: int | None = None
    """CRC-32 of all its bytes; None if the object was found in the store and not read since."""
    first_time_us: int | None = None
    last_time_us: int | None = None
    uploaded_us: int = 0

    @property
    def range(self) -> OffsetRange | None:
        return OffsetRange(self.first, self.end) if self.first < self.end else None

    def as_content(self) -> dict[str, Any]:
        return {
            "end": self.end,
            "bytes": self.size_bytes,
            "etag": self.etag,
            "crc": self.crc,
            "first_time_us": self.first_time_us,
            "last_time_us": self.last_time_us,
            "uploaded_us": self.uploaded_us,
        }

    @classmethod
    def from_content(cls, log_id: str, epoch: int, first: int, content: dict[str, Any]) -> Self:
        """Raises `KeyError`, `TypeError` or `ValueError` if it is not such a content."""
        made = cls(
            log_id,
            epoch,
            first,
            int(content["end"]),
            int(content["bytes"]),
            None if content["etag"] is None else str(content["etag"]),
            None if content["crc"] is None else int(content["crc"]),
            None if content["first_time_us"] is None else int(content["first_time_us"]),
            None if content["last_time_us"] is None else int(content["last_time_us"]),
            int(content["uploaded_us"]),
        )
        if made.end < first or made.size_bytes <= 0:
            raise ValueError(f"end {made.end} and bytes {made.size_bytes} are impossible")
        return made


def held_from(first_offset: int, objects: Sequence[StoredObject]) -> int:
    """Return where the rows begin that the files, from `first_offset` on, or objects hold without a gap."""
    first = first_offset
    for one in reversed(objects):
        if one.end < first:
            break
        first = min(first, one.first)
    return first
