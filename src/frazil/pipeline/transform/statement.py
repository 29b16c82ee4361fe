"""A topic's own SQL query over its rows, from the settings."""

from __future__ import annotations

import re
from dataclasses import dataclass

from frazil.core.errors import InvalidSettings

VIEW = "topic"

_COMMENTS = re.compile(r"(?:\s+|--[^\n]*(?:\n|$)|/\*.*?\*/)*", re.DOTALL)
_QUERY = re.compile(r"(?:select|with)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Statement:
    """A query of the settings, and its key, for messages."""

    setting: str
    text: str

    def query(self, view: str) -> str:
        """Return the statement as a subquery, where Spark's grammar accepts only a query."""
        text = self.text.strip().removesuffix(";")
        return f"WITH {VIEW} AS (SELECT * FROM {view})\nSELECT * FROM (\n{text}\n)"  # noqa: S608 - it is the user's own

    def check(self) -> None:
        start = _COMMENTS.match(self.text)
        if _QUERY.match(self.text, start.end() if start else 0) is None:
            raise InvalidSettings(f"{self.setting}: must be a single query, SELECT … or WITH …, over {VIEW}")
