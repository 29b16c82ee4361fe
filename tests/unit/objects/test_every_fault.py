"""Every call of a scenario to the object store, and every one for manifests, fails in turn: once and for ever, before
and after its effect. A log is written, opened again, taken over by another process, and taken back.

Nothing acknowledged is lost, nothing refused is there, numbered rows are there once, and a listing tells as much as the
manifests.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from acked_servers import SECONDS, TOPIC, Server, eventually

import frazil
from frazil.core.errors import FrazilError, MetadataUnavailable, ObjectStoreUnavailable, OutcomeUnknown, Overloaded
from frazil.core.names import TopicName
from frazil.core.sequences import Sent
from frazil.core.settings import AckLevel, make_settings
from frazil.log.write.producers import ProducersRecord
from frazil.meta.sqlite import SqliteStore
from frazil.objects.loading import LoadedObjects, load_objects
from frazil.objects.manifests import Manifests
from frazil.objects.opening import open_objects
from frazil.objects.reading import ObjectReader
from frazil.objects.recovery import Stated, continuation
from frazil.objects.remote import ObstoreObjects
from frazil.testing import FaultyDisk
from frazil.testing.faulty_disk import PowerCut
from parts.faulty_store import FaultyStore

STORE_CALLS = ("create", "get", "get_range", "head", "walk", "delete")
MANIFEST_CALLS = ("of", "put", "remove")
MODES = list(itertools.product(["store", "manifests"], [False, True], [False, True]))
QUICK_SAMPLES = 2
"""Of each part and mode in a quick run; the long run takes every call."""

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
"""Threads of servers that were killed find their disk gone."""

Made = TypeVar("Made")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@dataclass
class Net:
    """`at` is the number of the call that fails, counted from 0; None counts alone."""

    part: str
    at: int | None = None
    after_effect: bool = False
    for_ever: bool = False
    count: int = 0
    failed: list[str] = field(default_factory=list)
    is_over: bool = False

    def install(self, patch: pytest.MonkeyPatch) -> None:
        self._count(patch, "store", ObstoreObjects, STORE_CALLS)
        self._count(patch, "manifests", Manifests, MANIFEST_CALLS)

    def _count(self, patch: pytest.MonkeyPatch, part: str, kind: type, names: tuple[str, ...]) -> None:
        for name in names if part == self.part else ():
            patch.setattr(kind, name, self._counted(name, getattr(kind, name)))

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            number, self.count = self.count, self.count + 1
            fails = self.at is not None and (number == self.at or (self.for_ever and number > self.at))
            if not fails or self.is_over:
                return call(*arguments, **named)
            self.failed.append(name)
            if self.after_effect:
                call(*arguments, **named)
            if self.part == "store":
                raise ObjectStoreUnavailable(name, "it does not answer")
            raise MetadataUnavailable("the store", "it does not answer", unclear=name != "of")

        return counted

    def __str__(self) -> str:
        when = "after" if self.after_effect else "before"
        which = f"{self.at} and all later" if self.for_ever else f"{self.at}"
        return f"{self.part} call {which}, {when} its effect: {self.failed[:3]}"


class Process(Server):
    """One that stores manifests too."""

    def __init__(
        self, store: FaultyStore, meta: SqliteStore, disk: FaultyDisk | None = None, owner: str = "b1"
    ) -> None:
        super().__init__(store, disk, owner, ack_timeout_ms=150)
        self.objects.manifests = Manifests(meta)


class Scenario:
    def __init__(self, folder: Path, net: Net) -> None:
        self.net = net
        where = {"type": "memory", "bucket": str(folder)}
        self.store = FaultyStore(open_objects(make_settings({"objects": {"enabled": True, "store": where}})))
        self.meta = SqliteStore(folder / "meta.db")
        self.processes: list[Process] = []
        self.log_id = ""
        self.taken: list[ProducersRecord] = []
        """The names of producers, as a cluster has them in its metadata store."""
        self.acked: dict[int, bytes] = {}
        self.refused: set[bytes] = set()

    def run(self) -> None:
        first = self.process()
        topic = self.made(first)
        self.log_id = topic.log.log_id
        self.publish(topic, b"a0", b"a1")
        topic.log.on_producers = self.taken.append
        state = self.tried(lambda: topic.open_producer("till"))
        sent = Sent("till", state.epoch, 0)
        at = self.tried(lambda: topic.publish_many([b"n0", b"n1"], sent=sent).start)
        self.acked |= {at: b"n0", at + 1: b"n1"}
        again = self.process(first.kill())
        topic = self.tried(again.topic)
        self.publish(topic, b"b0", b"b1")
        theirs = self.taken_over()
        self.publish(theirs, b"c0")
        assert self.tried(lambda: theirs.publish_many([b"n0", b"n1"], sent=sent).start) == at, "it is known there too"
        with pytest.raises(FrazilError):
            topic.publish(b"late")
        back = self.process(again.kill())
        topic = self.tried(back.topic)
        self.publish(topic, b"d0")
        with pytest.raises(FrazilError):
            theirs.publish(b"late too")
        self.net.is_over = True
        eventually(lambda: topic.log.durable_end == topic.log.written_end)
        self.publish(topic, b"e0")
        self.check(topic)

    def close(self) -> None:
        self.store.is_away = False
        for one in self.processes:
            with contextlib.suppress(FrazilError, PowerCut):
                one.storage.close()
            one.acks.close()
        self.meta.close()

    # --- steps

    def process(self, disk: FaultyDisk | None = None, owner: str = "b1") -> Process:
        self.processes.append(Process(self.store, self.meta, disk, owner))
        return self.processes[-1]

    def made(self, process: Process) -> frazil.Topic:
        return self.tried(
            lambda: process.storage.topic(TOPIC, create=False) if TOPIC in process.storage.topics() else process.made()
        )

    def tried(self, act: Callable[[], Made]) -> Made:
        """A caller that tries again; what has failed for ever works after that."""
        for _ in range(int(SECONDS * 100)):
            try:
                return act()
            except (ObjectStoreUnavailable, MetadataUnavailable, Overloaded, OutcomeUnknown):
                self.net.is_over = self.net.for_ever or self.net.is_over
                threading.Event().wait(0.01)
        raise AssertionError(f"it never succeeds: {self.net}")

    def publish(self, topic: frazil.Topic, *texts: bytes) -> None:
        for text in texts:
            try:
                self.acked[topic.publish(text)] = text
            except Overloaded:
                self.refused.add(text)
            except OutcomeUnknown:
                pass  # it may be there

    def taken_over(self) -> frazil.Topic:
        """Take the log over with another folder, while its owner sleeps."""
        process = self.process(owner="b2")

        def adopt() -> frazil.Topic:
            taken = process.acks.take_over(self.log_id, TopicName.parse(TOPIC))
            stated = Stated(taken=self.taken[-1], ack=AckLevel.OBJECT)
            held = process.objects.of(self.log_id).load().all()
            goes_on = continuation(process.objects.store, self.log_id, held, taken.end, stated)
            return process.storage.adopt_topic(TOPIC, goes_on)

        return self.tried(adopt)

    # --- what must hold

    def check(self, topic: frazil.Topic) -> None:
        manifests = Manifests(self.meta)
        found = load_objects(self.store.inner, self.log_id, None)
        known = load_objects(self.store.inner, self.log_id, manifests)
        assert [(one.epoch, one.first, one.end) for one in found.objects] == [
            (one.epoch, one.first, one.end) for one in known.objects
        ]
        rows = self.rows(found)
        assert len(rows) == found.end == topic.log.durable_end
        for offset, text in self.acked.items():
            assert rows[offset] == text, f"{text!r} was acknowledged at {offset}: {self.net}"
        assert not self.refused & set(rows), f"what was refused is there: {self.net}"
        assert [rows.count(text) for text in (b"n0", b"n1")] == [1, 1], f"numbered rows: {self.net}"

    def rows(self, found: LoadedObjects) -> list[bytes]:
        with contextlib.closing(ObjectReader(self.store.inner, found.objects, 0)) as reader:
            return [text for batch in reader for text in batch.rows.column("_payload").to_pylist()]


def lived(folder: Path, net: Net, patch: pytest.MonkeyPatch) -> Net:
    folder.mkdir()
    with patch.context() as patched:
        net.install(patched)
        scenario = Scenario(folder, net)
        try:
            scenario.run()
        finally:
            net.is_over = True
            scenario.close()
    return net


@pytest.mark.parametrize(("part", "after_effect", "for_ever"), MODES)
@pytest.mark.parametrize("all_calls", [False, pytest.param(True, marks=[pytest.mark.long, pytest.mark.timeout(1_800)])])
def test_a_call_that_fails_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, after_effect: bool, for_ever: bool, all_calls: bool
) -> None:
    calls = range(lived(tmp_path / "counted", Net(part), monkeypatch).count)
    assert len(calls) > 5
    some = calls if all_calls else random.Random(part).sample(calls[: len(calls) // 2], QUICK_SAMPLES)
    nets = [lived(tmp_path / str(at), Net(part, at, after_effect, for_ever), monkeypatch) for at in some]
    assert any(net.failed for net in nets), "nothing failed: the test shows nothing"
