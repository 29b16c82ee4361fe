"""A query as a separate process, `frazil sql`: its memory and time do not affect publishers."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from frazil.core.process.child import Child
from frazil.node.tiers.cluster_logs import ForwardedCaller

QUERY_ON_STDIN = "-"


class SqlProcess:
    """One query with its own temporary folder. All calls block."""

    def __init__(
        self,
        command: Sequence[str],
        sql: str,
        snapshot: int | None = None,
        at: str | None = None,
        rules: Sequence[Mapping[str, Any]] | None = None,
        forwarded: ForwardedCaller | None = None,
    ) -> None:
        """`command` is that of the verb; the snapshot or the time is added, and the query goes through stdin.

        `rules` are those of `Gate.rules_of` for the caller: the process sees only what they allow to read. `forwarded`
        is with what it may ask other brokers in the caller's name.
        """
        self._told = {"sql": sql, "rules": rules, "forwarded": None if forwarded is None else asdict(forwarded)}
        self._folder = tempfile.TemporaryDirectory(prefix="frazil-sql-")
        self.child = Child(
            [*command, *_words(snapshot, at)],
            env={**os.environ, "TMPDIR": self._folder.name, "ARROW_DEFAULT_MEMORY_POOL": "system"},
        )

    def opened(self) -> pa.RecordBatchReader | None:
        """Send them through stdin, which others cannot read; None if the process ended without an answer."""
        self.child.tell(json.dumps(self._told).encode())
        try:
            return pa.ipc.open_stream(self.child.stdout)
        except (pa.ArrowException, OSError):
            return None

    def kill(self) -> None:
        self.child.kill()

    def close(self) -> None:
        self.child.close()
        self._folder.cleanup()


def _words(snapshot: int | None, at: str | None) -> list[str]:
    given = [] if snapshot is None else ["--snapshot", str(snapshot)]
    given += [] if at is None else ["--at", at]
    return [*given, "--", QUERY_ON_STDIN]
