"""Changes whose outcome is unknown, when several threads use the store: no read overtakes the question about them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator

import pytest

from frazil.core.settings.metadata import MetadataSettings
from frazil.meta import etcd_pb2 as pb
from frazil.meta.etcd import EtcdStore, _Slip
from frazil.meta.etcd_client import RANGE, TXN


class SlowClient:
    """An etcd that answers questions about earlier changes late."""

    def __init__(self) -> None:
        self.asked: queue.Queue[object] = queue.Queue()
        self.answers = threading.Event()

    def ends(self) -> float:
        return time.monotonic() + 30

    def ask_until(self, call: object, request: object, ends: float) -> object:
        self.asked.put(call)
        if call is TXN:
            assert self.answers.wait(30)
            return pb.TxnResponse(succeeded=True)
        return pb.RangeResponse()


@pytest.fixture
def store() -> Iterator[EtcdStore]:
    made = EtcdStore(MetadataSettings.model_validate({"type": "etcd", "endpoints": ["http://127.0.0.1:1"]}))
    real = made._client
    yield made
    made._client = real
    made.close()


def test_a_read_waits_for_the_outcome_that_another_thread_asks_for(store: EtcdStore) -> None:
    """The change may still be made until etcd has withdrawn it: what was read before would be old."""
    client = SlowClient()
    store._client = client  # type: ignore[assignment]
    store._unsettled = [_Slip(b"/slip", 5, 1, 0.0, is_lost=True)]
    threads = [threading.Thread(target=store.get, args=("/a-record",)) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert [client.asked.get(timeout=30) for _ in threads] == [TXN, TXN], "no record is read before"
    client.answers.set()
    for thread in threads:
        thread.join(30)
    assert [client.asked.get(timeout=30) for _ in threads] == [RANGE, RANGE]
    assert store._unsettled == []
