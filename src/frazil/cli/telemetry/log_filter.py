"""Selects the log records that a verb shows: by SQL for stored records, and by the same rule for new ones."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from frazil.cli.telemetry.places import literal, time_literal
from frazil.core.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

SEVERITIES = {"trace": 1, "debug": 5, "info": 9, "warn": 13, "error": 17, "fatal": 21}
"""The least number of each."""
SEVERITY_MAX = 24


@dataclass(frozen=True, slots=True)
class LogFilter:
    service: str | None = None
    severity_min: int = 0
    text: str | None = None
    since: datetime | None = None

    def condition(self) -> str:
        """Return the condition of SQL."""
        found = ["true"]
        if self.service is not None:
            found.append(f"service_name = {literal(self.service)}")
        if self.severity_min:
            found.append(f"severity_number >= {self.severity_min}")
        if self.text is not None:
            found.append(f"contains(body, {literal(self.text)})")
        if self.since is not None:
            found.append(f"timestamp >= {time_literal(self.since)}")
        return " AND ".join(found)

    def kept(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that fit. What is null fits nothing, as in SQL."""
        import pyarrow as pa
        import pyarrow.compute as pc

        masks = []
        if self.service is not None:
            masks.append(pc.equal(rows.column("service_name"), self.service))
        if self.severity_min:
            masks.append(pc.greater_equal(rows.column("severity_number"), self.severity_min))
        if self.text is not None:
            masks.append(pc.match_substring(rows.column("body"), self.text))
        if self.since is not None:
            masks.append(pc.greater_equal(rows.column("timestamp"), pa.scalar(self.since, pa.timestamp("us", "UTC"))))
        for mask in masks[1:]:
            masks[0] = pc.and_(masks[0], mask)
        return rows.filter(masks[0]) if masks else rows


def parse_severity(text: str | None) -> int:
    """Parse a name, or a number of 1 to 24; 0 without one."""
    if text is None:
        return 0
    number = SEVERITIES.get(text.lower()) or (int(text) if text.isascii() and text.isdecimal() and len(text) < 3 else 0)
    if not 1 <= number <= SEVERITY_MAX:
        known = ", ".join(SEVERITIES)
        raise InvalidInput(f"--severity: {text!a:.40} is none of {known}, nor 1 to {SEVERITY_MAX}", option="--severity")
    return number


def severity_shown(number: int | None, text: str | None) -> str:
    """Return the name that the sender gave, else that of the number."""
    if text:
        return text
    name = next((name for name, least in reversed(SEVERITIES.items()) if (number or 0) >= least), None)
    return "-" if name is None else name.upper()
