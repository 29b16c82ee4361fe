"""A catalog that others meddle with: the moment between a look at a table and its commit, in a test's hands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyiceberg.catalog import Catalog


class Meddling:
    """A catalog whose commits meet what a test says: `on_commit` is given the real call, and answers for it."""

    def __init__(self, real: Catalog, on_commit: Callable[[int, Callable[[], Any]], Any]) -> None:
        self._real = real
        self._on_commit = on_commit
        self.commits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def commit_table(self, *arguments: Any) -> Any:
        self.commits += 1
        return self._on_commit(self.commits, lambda: self._real.commit_table(*arguments))
