"""Ctrl-C while a server runs a job for a verb."""

from __future__ import annotations

import os
import signal
from typing import Any, cast

import pytest

from frazil.cli.target.jobs import run_job
from frazil.cli.target.server import Server


class InterruptedServer:
    """Ctrl-C comes while it answers the call with this name."""

    def __init__(self, during: str) -> None:
        self.during = during
        self.deleted: list[str] = []

    def post_to_owner(self, path: str, asked: Any) -> tuple[InterruptedServer, dict[str, Any]]:
        self._interrupt("post")
        return self, {"id": "7", "state": "running"}

    def get(self, path: str) -> dict[str, Any]:
        self._interrupt("get")
        return {"id": "7", "state": "running", "total": None}

    def delete(self, path: str) -> None:
        self.deleted.append(path)

    def _interrupt(self, call: str) -> None:
        if call == self.during:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("during", ["post", "get"])
def test_ctrl_c_cancels_the_job_also_before_its_id_is_known(during: str) -> None:
    server = InterruptedServer(during)
    with pytest.raises(KeyboardInterrupt):
        run_job(cast(Server, server), "/v1/verify", {}, "rows", lambda stack, total: lambda done: None)
    assert server.deleted == ["/v1/verify/7"]
