"""The schema registry and what is set for topics, in an etcd whose answers are lost: each change counts once."""

from __future__ import annotations

import contextlib
import json
import random
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import frazil
from frazil.core.clock import SystemClock
from frazil.core.settings.metadata import MetadataSettings, MetadataType
from frazil.meta.etcd import EtcdStore
from frazil.registry.registry import Registered, SchemaRegistry
from frazil.registry.topics import TopicSchemas
from parts.etcd import Etcd, etcd_server
from parts.etcd_proxy import EtcdProxy, proxy_before_etcd
from parts.processes import pause

SUBJECTS = ("orders", "payments")
EACH = 8


@pytest.fixture
def proxy(etcd: Etcd) -> Iterator[EtcdProxy]:
    with proxy_before_etcd(etcd.port) as proxy:
        yield proxy


@contextlib.contextmanager
def opened(endpoint: str, prefix: str, timeout_ms: int = 30_000) -> Iterator[EtcdStore]:
    chosen = MetadataSettings(type=MetadataType.ETCD, endpoints=(endpoint,), prefix=prefix, timeout_ms=timeout_ms)
    with contextlib.closing(EtcdStore(chosen)) as store:
        yield store


class Loser:
    """Loses a call or an answer somewhere in what is done next."""

    def __init__(self, proxy: EtcdProxy) -> None:
        self._proxy = proxy
        self._chance = random.Random(11)

    def arm(self) -> None:
        after = self._chance.randrange(8)
        if self._chance.random() < 0.3:
            self._proxy.lose_call(after)
        else:
            self._proxy.lose_answer(lambda: None, after)


def definition(worker: int, number: int) -> bytes:
    return json.dumps({"type": "object", "title": f"{worker} {number}", "properties": {}}).encode()


def test_each_registration_counts_once_and_versions_have_no_gap(etcd: Etcd, proxy: EtcdProxy) -> None:
    prefix = f"/test-{uuid.uuid4().hex[:12]}"
    made: dict[str, list[Registered]] = {subject: [] for subject in SUBJECTS}
    loser = Loser(proxy)

    def work(registry: SchemaRegistry, worker: int) -> None:
        for number in range(EACH):
            for subject in SUBJECTS:
                loser.arm()
                made[subject].append(registry.register(subject, "json", definition(worker, number)))

    with opened(proxy.endpoint, prefix) as store, opened(etcd.endpoint, prefix) as sure:
        for subject in SUBJECTS:
            made[subject].append(SchemaRegistry(sure, SystemClock()).register(subject, "json", definition(9, 9)))
            SchemaRegistry(sure, SystemClock()).set_compatibility_mode(subject, "none")
        registry = SchemaRegistry(store, SystemClock())
        with ThreadPoolExecutor(2) as workers:
            for working in [workers.submit(work, registry, worker) for worker in range(2)]:
                working.result()
        assert proxy.lost > EACH
        seen = SchemaRegistry(sure, SystemClock())
        ids = {seen.schema_id(subject) for subject in SUBJECTS}
        assert len(ids) == len(SUBJECTS)
        for subject in SUBJECTS:
            told = sorted((one.version, one.fingerprint) for one in made[subject])
            assert [(one.version, one.fingerprint) for one in seen.versions(subject)] == told
            assert [version for version, _ in told] == list(range(1, 2 * EACH + 2))
            assert all(one.is_new_version for one in made[subject])


def test_what_is_set_for_a_topic_is_what_was_told_last(etcd: Etcd, proxy: EtcdProxy) -> None:
    prefix = f"/test-{uuid.uuid4().hex[:12]}"
    with opened(proxy.endpoint, prefix) as store, opened(etcd.endpoint, prefix) as sure:
        registry = SchemaRegistry(store, SystemClock())
        topics = TopicSchemas(store, registry, SystemClock())
        seen = TopicSchemas(sure, SchemaRegistry(sure, SystemClock()), SystemClock())
        loser = Loser(proxy)
        registry.register("orders", "json", definition(0, 0))
        for turn in range(12):
            topic = f"/default/t{turn % 3}"
            loser.arm()
            assert topics.bind(topic, "orders").subject == "orders"
            policy = ("none", "warn", "enforce")[turn % 3]
            told = topics.set_policy(topic, policy, turn % 2 == 0)
            assert seen.get(topic) == told
            loser.arm()
            store.delete_all([topics.key(topic)])
            topics.changed()
            assert seen.get(topic).subject is None
        assert proxy.lost > 3


def test_a_registration_that_was_told_as_unknown_counts_once_or_not_at_all(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """etcd hangs in the middle of it. Asked again, it is the version that there is, or the next."""
    with (
        etcd_server(tmp_path_factory.mktemp("etcd")) as server,
        opened(server.endpoint, "/t", timeout_ms=500) as store,
    ):
        registry = SchemaRegistry(store, SystemClock())
        registry.register("orders", "json", definition(0, 0))
        registry.set_compatibility_mode("orders", "none")
        for number in range(1, 6):
            with server.stopped(), pytest.raises(frazil.MetadataUnavailable):
                registry.register("orders", "json", definition(0, number))
            again = _until_registered(registry, definition(0, number))
            assert again.version == number + 1
        assert [one.version for one in registry.versions("orders")] == [1, 2, 3, 4, 5, 6]


def _until_registered(registry: SchemaRegistry, text: bytes) -> Registered:
    for _ in range(200):
        with contextlib.suppress(frazil.MetadataUnavailable):
            return registry.register("orders", "json", text)
        pause(0.05)
    raise AssertionError("etcd never came back")
