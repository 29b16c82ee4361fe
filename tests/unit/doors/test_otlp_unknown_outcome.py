"""A request whose outcome is not known is answered so that exporters send it again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from frazil.core.errors import OutcomeUnknown
from frazil.node.publish.publishers import BatchPublisher
from parts.otlp_doors import otlp_doors
from parts.otlp_requests import spans


def test_an_exporter_sends_a_request_of_unknown_outcome_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a topic that the object store acknowledges, once the store does not answer."""

    async def unanswered(*_: object) -> object:
        raise OutcomeUnknown("/default.default/traces", "the object store does not answer")

    async def go() -> None:
        async with otlp_doors(tmp_path) as doors:
            assert (await doors.call(spans(1))).code is grpc.StatusCode.OK
            monkeypatch.setattr(BatchPublisher, "publish", unanswered)
            reply, answer = await doors.call(spans(2)), await doors.post(spans(2))
            assert (reply.code, reply.retry_ms) == (grpc.StatusCode.UNAVAILABLE, 1_000)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")

    asyncio.run(go())
