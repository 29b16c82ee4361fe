"""Table partitioning expressions: `day(_publish_time)`, `bucket[16](_key)`, or a bare column."""

from __future__ import annotations

import re
from dataclasses import dataclass

PLAIN_TRANSFORMS = ("identity", "year", "month", "day", "hour")
WIDE_TRANSFORMS = ("bucket", "truncate")

_CALL = re.compile(r"(?P<transform>\w+)(?:\[(?P<width>\d{1,9})\])?\((?P<column>[^()]+)\)")
_COLUMN = re.compile(r"[^()\[\]]+")


@dataclass(frozen=True, slots=True)
class PartitionField:
    column: str
    transform: str = "identity"

    @property
    def name(self) -> str:
        """The name of the field in the table: `_key_bucket`; a bare column keeps its name."""
        return self.column if self.transform == "identity" else f"{self.column}_{self.transform.split('[')[0]}"

    def __str__(self) -> str:
        return self.column if self.transform == "identity" else f"{self.transform}({self.column})"


@dataclass(frozen=True, slots=True)
class Partitioning:
    """The partition fields, and the setting that defines them, for messages."""

    setting: str
    fields: tuple[PartitionField, ...]


def parse_partitioning(words: tuple[str, ...]) -> tuple[PartitionField, ...]:
    """Parse the expressions, or raise ValueError that names the wrong one."""
    fields = tuple(_parsed(word) for word in words)
    names = [field.name for field in fields]
    for field in fields:
        if names.count(field.name) > 1:
            raise ValueError(f"{field.name} is defined twice; keep one of them")
    return fields


def _parsed(word: str) -> PartitionField:
    text = word.strip()
    call = _CALL.fullmatch(text)
    if call is None:
        if not _COLUMN.fullmatch(text):
            raise ValueError(f"{word!r} is neither a column nor like day(column) or bucket[16](column)")
        return PartitionField(text)
    transform, width = call["transform"].lower(), call["width"]
    if transform in WIDE_TRANSFORMS:
        if width is None or int(width) == 0:
            raise ValueError(f"{word!r}: {transform} needs a width above 0, as in {transform}[16](column)")
        return PartitionField(call["column"].strip(), f"{transform}[{int(width)}]")
    if transform not in PLAIN_TRANSFORMS:
        known = ", ".join((*PLAIN_TRANSFORMS, *(f"{name}[N]" for name in WIDE_TRANSFORMS)))
        raise ValueError(f"{word!r}: there is no {transform}; there are {known}")
    if width is not None:
        raise ValueError(f"{word!r}: {transform} takes no width")
    return PartitionField(call["column"].strip(), transform)
