"""Who acts in the world beside the owner: movers, and clients that number their rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from frazil import (
    Sent,
)
from frazil.node.movers.status_file import StatusFile
from frazil.pipeline.move.mover import Mover
from frazil.testing.jobs import InProcessJobs


class Killed(BaseException):
    """The mover's process is gone: no code of it runs on, so no `except Exception` may catch it."""


@dataclass
class MoverProcess:
    """One mover with a catalog of its own, as another process would have; `fault` is called around each commit."""

    mover: Mover
    jobs: InProcessJobs
    status: StatusFile
    catalog: Any
    commit: Callable[..., Any]
    stale: set[str] = field(default_factory=set)
    """Topics whose tables people changed since this mover met them: its next move of one of them may fail, once."""


@dataclass
class Client:
    """A client that numbers its rows. What it sent without an answer it may send again."""

    producer: str
    topic: str
    log_id: str = ""
    id: str = ""
    epoch: int = 0
    sequence: int = 0
    in_flight: list[tuple[Sent, list[bytes]]] = field(default_factory=list)
