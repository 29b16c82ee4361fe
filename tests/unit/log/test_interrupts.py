"""An interrupt (Ctrl-C) of a caller is no error of the disk: the log goes on, and every answer given is true."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import frazil
from frazil import Sent
from parts.interrupts import Interrupted, Interrupts, Others

TOPIC = "/default/orders"
KIB = 1024


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one that was raised in a callback
@pytest.mark.parametrize("seed", range(2))
def test_interrupts_at_random_moments_neither_fail_a_log_nor_make_an_answer_untrue(tmp_path: Path, seed: int) -> None:
    settings = frazil.Settings(data=tmp_path, wal=frazil.WalSettings(max_file_size=64 * KIB))
    storage = frazil.open(settings)
    topic = storage.topic(TOPIC)
    interrupts, attempts = Interrupts(seed), 0
    answered: dict[int, bytes] = {}

    def publish(payload: bytes) -> None:
        answered[topic.publish(payload)] = payload

    def publish_numbered() -> None:
        state = topic.open_producer("till")
        numbered = [b"numbered %d" % (state.next_sequence + row) for row in range(3)]
        for offset, payload in zip(
            topic.publish_many(numbered, sent=Sent("till", state.epoch, state.next_sequence)), numbered, strict=True
        ):
            answered[offset] = payload

    def manage() -> None:
        storage.topic("/default/short-lived").publish("x")
        storage.delete_topic("/default/short-lived")
        storage.maintain()
        topic.sync()

    end = time.monotonic() + 1.5
    with Others(topic) as others, interrupts.coming():
        while time.monotonic() < end and not others.errors:
            attempts += 1
            payload = b"main %d" % attempts
            interrupts.call(lambda payload=payload: publish(payload))  # type: ignore[misc]
            interrupts.call(publish_numbered)
            if attempts % 20 == 0:
                interrupts.call(manage)
    assert not others.errors
    assert interrupts.count > 3
    assert topic.publish(b"after") >= 0
    storage.close()
    with frazil.open(settings) as storage:
        rows = {message.offset: message.payload for message in storage.topic(TOPIC).read("earliest")}
    assert sorted(rows) == list(range(len(rows)))
    for offset, payload in {**answered, **others.answered}.items():
        assert rows[offset] == payload
    assert [payload for payload, count in Counter(rows.values()).items() if count > 1] == []


def test_an_exception_raised_into_any_publishing_thread_does_not_fail_the_log(tmp_path: Path) -> None:
    with frazil.open(tmp_path) as storage:
        topic = storage.topic(TOPIC)
        for number in range(15):
            started = threading.Event()

            def publish_on(number: int = number, started: threading.Event = started) -> None:
                with contextlib.suppress(Interrupted):
                    while True:
                        topic.publish(b"thread %d" % number)
                        started.set()

            thread = threading.Thread(target=publish_on)
            thread.start()
            assert started.wait(30)
            assert thread.ident is not None
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Interrupted))
            thread.join(30)
            assert not thread.is_alive()
            assert topic.publish(b"goes on") == topic.stats().end - 1
        assert len(list(topic.read("earliest"))) == topic.stats().end
