"""etcd goes away, hangs, loses answers, asks who we are: nothing is lost, doubled, or told wrongly."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import multiprocessing
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from metas import Place, add_in_process, opened, settings

import frazil
from frazil.cli.doctor import _metadata as look_at_metadata
from frazil.core.settings import Settings
from frazil.iceberg import IcebergStorage, SubscriptionProgress
from frazil.meta.etcd import EtcdStore
from frazil.meta.etcd_watch import range_end
from frazil.meta.store import ABSENT, Change, MetaStore, StoredEntry
from parts.etcd import PASSWORD, Etcd, etcd_cluster, etcd_server, gateway, turn_on_users
from parts.etcd_proxy import EtcdProxy, proxy_before_etcd
from parts.processes import free_port, pause

WAIT_MS = 30_000


def test_a_watch_sees_a_thousand_changes_once_though_etcd_is_killed_meanwhile(own_etcd: Etcd) -> None:
    """Those who change wait as well, and each change that was told as made is made once."""
    made: list[tuple[int, int]] = []

    def change(store: MetaStore, count: int) -> None:
        for _ in range(count):
            while True:
                found = store.get("/count")
                value = 1 if found is None else int(found.value) + 1
                revision = store.put_if("/count", b"%d" % value, ABSENT if found is None else found.revision)
                if revision is not None:
                    made.append((value, revision))
                    break

    with opened(settings(own_etcd.endpoint, timeout_ms=45_000)) as store, store.watch("/", 0) as watch:
        changers = [threading.Thread(target=change, args=(store, 250)) for _ in range(4)]
        for changer in changers:
            changer.start()
        seen: list[Change] = []
        while len(seen) < 1_000:
            found = watch.next(WAIT_MS)
            assert found is not None, f"{len(seen)} changes, and no more"
            seen.append(found)
            if len(seen) in (200, 600):
                own_etcd.kill()
                own_etcd.start()
        for changer in changers:
            changer.join()
        assert watch.next(100) is None
    assert [int(each.value or b"") for each in seen] == list(range(1, 1_001))
    assert sorted(made) == [(int(each.value or b""), each.revision) for each in seen]


@pytest.mark.long
def test_whatever_befalls_etcd_every_increment_of_every_process_counts_once(own_etcd: Etcd, tmp_path: Path) -> None:
    place = Place(tmp_path, settings(own_etcd.endpoint, timeout_ms=60_000))
    spawn, chance = multiprocessing.get_context("spawn"), random.Random(7)
    processes = [spawn.Process(target=add_in_process, args=(place, 2_000)) for _ in range(3)]
    with opened(place.metadata) as store, store.watch("/", 0) as watch:
        for process in processes:
            process.start()
        while any(process.is_alive() for process in processes):
            pause(chance.uniform(0.2, 2.0))
            if chance.random() < 0.5:
                own_etcd.kill()
                own_etcd.start()
            else:
                with own_etcd.stopped():
                    pause(chance.uniform(0.1, 3.0))
        assert [process.exitcode for process in processes] == [0, 0, 0]
        seen = [watch.next(WAIT_MS) for _ in range(6_000)]
        assert watch.next(100) is None
    assert [int(change.value or b"") for change in seen if change] == list(range(1, 6_001))


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_cluster_goes_on_without_any_one_of_its_members(how: str, tmp_path: Path) -> None:
    """Each in turn, so that the one that is asked and the one that leads are among them; no increment is lost or
    doubled, and who watches sees each of them once."""
    with etcd_cluster(tmp_path) as members:
        chosen = settings(*(member.endpoint for member in members), timeout_ms=9_000)
        with opened(chosen) as store, store.watch("/", 0) as watch:
            for member in members:
                counter = threading.Thread(target=_add, args=(store, 30))
                counter.start()
                if how == "killed":
                    member.kill()
                    counter.join()
                    member.start()
                else:
                    with member.stopped():
                        counter.join()
            seen = [watch.next(WAIT_MS) for _ in range(90)]
            assert watch.next(100) is None
    assert [int(change.value or b"") for change in seen if change] == list(range(1, 91))


def test_a_cluster_without_a_majority_says_so_and_goes_on_when_it_has_one_again(tmp_path: Path) -> None:
    with etcd_cluster(tmp_path) as (one, two, three), opened(settings(one.endpoint, timeout_ms=2_000)) as store:
        revision = store.put_if("/a", b"one", ABSENT)
        assert revision is not None
        two.kill()
        three.kill()
        started = time.monotonic()
        with pytest.raises(frazil.MetadataUnavailable, match="whether the change was made is unknown"):
            store.put_if("/a", b"two", revision)
        with pytest.raises(frazil.MetadataUnavailable):
            store.get("/a")
        assert time.monotonic() - started < 8
        two.start(alone=True)
        found = _until(lambda: store.get("/a"))
        assert found.value in (b"one", b"two"), "a majority decides what became of the change"
        assert store.put_if("/a", b"three", found.revision) is not None


def _add(store: MetaStore, count: int) -> None:
    for _ in range(count):
        while True:
            found = store.get("/count")
            value = 1 if found is None else int(found.value) + 1
            if store.put_if("/count", b"%d" % value, ABSENT if found is None else found.revision) is not None:
                break


def test_a_quiet_watch_does_not_lose_its_place_to_a_compaction(tmp_path: Path) -> None:
    options = ["--experimental-watch-progress-notify-interval=100ms"]
    with (
        etcd_server(tmp_path / "etcd", options) as server,
        opened(settings(server.endpoint)) as store,
        store.watch("/quiet/", 0) as watch,
    ):
        revision = ABSENT
        for _ in range(5):
            revision = store.put_if("/loud", b"", revision) or 0
        while watch.revision < revision:
            assert watch.next(50) is None
        gateway(server.endpoint, "/v3/kv/compaction", {"revision": revision})
        server.kill()
        server.start()
        made = store.put_if("/quiet/a", b"one", ABSENT)
        assert watch.next(WAIT_MS) == Change("/quiet/a", b"one", made or 0)


def test_while_etcd_hangs_calls_end_in_time_and_then_work_again(own_etcd: Etcd) -> None:
    with opened(settings(own_etcd.endpoint, timeout_ms=1_000)) as store, store.watch("/", 0) as watch:
        revision = store.put_if("/a", b"one", ABSENT)
        assert revision is not None
        with own_etcd.stopped():
            started = time.monotonic()
            with pytest.raises(
                frazil.MetadataUnavailable, match=f"{own_etcd.endpoint} .*did not answer in time"
            ) as read:
                store.get("/a")
            with pytest.raises(frazil.MetadataUnavailable, match="whether the change was made is unknown") as change:
                store.put_if("/a", b"two", revision)
            assert time.monotonic() - started < 5
        assert (read.value.unclear, change.value.unclear) == (False, True)
        found = _until(lambda: store.get("/a"))
        assert found.value in (b"one", b"two"), "and what it says now is not overtaken by what was asked before"
        assert store.put_if("/a", b"three", found.revision) is not None
        values = []
        while values[-1:] != [b"three"]:
            seen = watch.next(WAIT_MS)
            assert seen is not None
            values.append(seen.value)
        assert values in ([b"one", b"three"], [b"one", b"two", b"three"])


def test_while_etcd_is_away_a_call_says_where_it_was_looked_for(tmp_path: Path) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    with opened(settings(endpoint, timeout_ms=500)) as store:
        with pytest.raises(frazil.MetadataUnavailable, match=f"metadata: {endpoint} cannot be used") as error:
            store.list("/")
        assert error.value.endpoint == endpoint
        with store.watch("/", 0) as watch:
            assert watch.next(200) is None, "a watch waits for etcd to come"


def test_a_member_that_is_away_is_passed_over(etcd: Etcd) -> None:
    away = f"http://127.0.0.1:{free_port()}"
    with opened(settings(away, etcd.endpoint)) as store, store.watch("/", store.snapshot("/").revision) as watch:
        assert store.put_if("/a", b"one", ABSENT) is not None
        assert watch.next(WAIT_MS) is not None


@pytest.fixture
def proxy(etcd: Etcd) -> Iterator[EtcdProxy]:
    with proxy_before_etcd(etcd.port) as proxy:
        yield proxy


@pytest.fixture
def pair(etcd: Etcd, proxy: EtcdProxy) -> Iterator[tuple[EtcdStore, EtcdStore]]:
    """One keyspace: a store whose answers may be lost, and one that sees what etcd has."""
    chosen = settings(proxy.endpoint)
    with opened(chosen) as ours, opened(chosen.model_copy(update={"endpoints": (etcd.endpoint,)})) as sure:
        revision = ours.put_if("/warm", b"", ABSENT)  # its connection and its slip are made
        assert revision is not None
        yield ours, sure


def _until(look: Callable[[], StoredEntry | None]) -> StoredEntry:
    for _ in range(1_000):
        with contextlib.suppress(frazil.MetadataUnavailable):
            found = look()
            if found is not None:
                return found
        pause(0.01)
    raise AssertionError("it never came")


def _changes(store: EtcdStore, key: str) -> list[bytes | None]:
    """All that has happened to a key in this test."""
    begin, end = store.get("/warm"), store.put_if("/end", b"", ABSENT)
    assert begin is not None
    values = []
    with store.watch("/", begin.revision) as watch:
        while (change := watch.next(WAIT_MS)) is not None and change.revision != end:
            values += [change.value] if change.key == key else []
    return values


def test_a_call_that_never_arrived_is_made_once(pair: tuple[EtcdStore, EtcdStore], proxy: EtcdProxy) -> None:
    ours, sure = pair
    proxy.lose_call()
    revision = ours.put_if("/a", b"one", ABSENT)
    assert proxy.lost == 1
    assert sure.get("/a") == StoredEntry("/a", b"one", revision or 0)
    assert _changes(sure, "/a") == [b"one"]


def test_a_change_whose_answer_was_lost_is_made_once_and_told(
    pair: tuple[EtcdStore, EtcdStore], proxy: EtcdProxy
) -> None:
    ours, sure = pair
    proxy.lose_answer(lambda: _until(lambda: sure.get("/a")))
    first = ours.put_if("/a", b"one", ABSENT)
    assert proxy.lost == 1
    assert sure.get("/a") == StoredEntry("/a", b"one", first or 0)
    proxy.lose_answer(lambda: _until(lambda: None if sure.get("/a") else StoredEntry("/a", b"", 0)))
    assert ours.delete("/a", first or 0) is True
    assert proxy.lost == 2
    assert _changes(sure, "/a") == [b"one", None]


def test_it_is_told_as_made_also_if_another_has_changed_the_key_since(
    pair: tuple[EtcdStore, EtcdStore], proxy: EtcdProxy
) -> None:
    ours, sure = pair

    def meddle() -> None:
        made = _until(lambda: sure.get("/a"))
        assert sure.put_if("/a", b"same", made.revision) is not None

    proxy.lose_answer(meddle)
    revision = ours.put_if("/a", b"same", ABSENT)
    found = sure.get("/a")
    assert found is not None
    assert revision is not None
    assert ABSENT < revision < found.revision
    assert _changes(sure, "/a") == [b"same", b"same"]


def test_it_is_told_as_not_made_if_another_with_the_same_value_was_quicker(
    pair: tuple[EtcdStore, EtcdStore], proxy: EtcdProxy
) -> None:
    ours, sure = pair
    first = sure.put_if("/a", b"same", ABSENT)
    proxy.lose_answer(lambda: None)
    assert ours.put_if("/a", b"same", ABSENT) is None
    assert proxy.lost == 1
    assert sure.get("/a") == StoredEntry("/a", b"same", first or 0)


def test_slips_are_not_seen_and_go_with_their_store(etcd: Etcd) -> None:
    chosen = settings(etcd.endpoint)
    with opened(chosen) as store:
        store.put_if("/a", b"", ABSENT)
        assert [entry.key for entry in store.list("/")] == ["/a"]
        wider = chosen.model_copy(update={"prefix": chosen.prefix + "~slips"})
        with opened(wider) as beside:
            assert len(beside.list("/")) == 1
            store.close()
            assert beside.list("/") == []


def test_with_the_prefix_of_all_keys_progress_is_at_the_path_that_others_read(own_etcd: Etcd, tmp_path: Path) -> None:
    chosen = settings(own_etcd.endpoint, prefix="/")
    written = Settings(data=tmp_path / "data", metadata=chosen)

    async def save() -> None:
        async with await IcebergStorage.create(written, mover=False) as storage:
            await storage.save_progress("billing", "/shop/orders", SubscriptionProgress(7))

    with opened(chosen) as store, store.watch("/", 0) as watch:
        asyncio.run(save())
        key = "/persistent_storage/iceberg/subscriptions/billing/shop/orders"
        assert [entry.key for entry in store.list("/")] == [key]
        change = watch.next(WAIT_MS)
        assert change is not None
        assert change.key == key
        found = gateway(own_etcd.endpoint, "/v3/kv/range", {"key": base64.b64encode(key.encode()).decode()})
        assert found["count"] == "1"
        assert store.delete(key, change.revision)
        assert watch.next(WAIT_MS) == Change(key, None, store.snapshot("/").revision)


def test_a_store_goes_on_though_its_slips_are_gone(etcd: Etcd) -> None:
    chosen = settings(etcd.endpoint)
    with opened(chosen) as store:
        first = store.put_if("/a", b"one", ABSENT)
        with opened(chosen.model_copy(update={"prefix": chosen.prefix + "~slips"})) as beside:
            for entry in beside.list("/"):
                assert beside.delete(entry.key, entry.revision)
        assert store.put_if("/a", b"two", first or 0) is not None
        assert store.put_if("/a", b"late", first or 0) is None


def test_a_user_with_a_password_is_let_in_as_often_as_etcd_asks(tmp_path: Path) -> None:
    with etcd_server(tmp_path / "etcd", ["--auth-token-ttl", "1"]) as server:
        _let_in(server)


@pytest.mark.parametrize(("prefix", "begins"), [("/frazil", ["/frazil"]), ("/", ["/", "~slips/"])])
def test_a_user_needs_no_more_rights_than_the_settings_page_says(
    prefix: str, begins: list[str], own_etcd: Etcd
) -> None:
    gateway(own_etcd.endpoint, "/v3/auth/user/add", {"name": "frazil", "password": PASSWORD})
    gateway(own_etcd.endpoint, "/v3/auth/role/add", {"name": "ours"})
    for begin in begins:
        key, end = (base64.b64encode(each).decode() for each in (begin.encode(), range_end(begin.encode())))
        permission = {"permType": "READWRITE", "key": key, "range_end": end}
        gateway(own_etcd.endpoint, "/v3/auth/role/grant", {"name": "ours", "perm": permission})
    gateway(own_etcd.endpoint, "/v3/auth/user/grant", {"user": "frazil", "role": "ours"})
    turn_on_users(own_etcd)
    chosen = settings(own_etcd.endpoint, prefix=prefix, username="frazil", password=PASSWORD)
    with opened(chosen) as store, store.watch("/", 0) as watch:
        first = store.put_if("/a", b"one", ABSENT)
        assert watch.next(WAIT_MS) == Change("/a", b"one", first or 0)
        assert store.delete("/a", first or 0)


def _let_in(server: Etcd) -> None:
    turn_on_users(server)
    chosen = settings(server.endpoint, username="root", password=PASSWORD)
    with opened(chosen) as store, opened(chosen) as other, other.watch("/", 0) as watch:
        first = store.put_if("/a", b"one", ABSENT)
        assert watch.next(WAIT_MS) == Change("/a", b"one", first or 0)
        pause(2.5)  # it forgets the tokens
        second = store.put_if("/a", b"two", first or 0)
        assert watch.next(WAIT_MS) == Change("/a", b"two", second or 0)
        server.kill()
        server.start()
        third = store.put_if("/a", b"three", second or 0)
        assert watch.next(WAIT_MS) == Change("/a", b"three", third or 0)
    for wrong in ({}, {"username": "root", "password": PASSWORD + "!"}):
        with opened(settings(server.endpoint, **wrong)) as store, pytest.raises(frazil.MetadataUnavailable) as error:
            store.put_if("/a", b"", ABSENT)
        with (
            opened(settings(server.endpoint, **wrong)) as store,
            store.watch("/", 0) as watch,
            pytest.raises(frazil.MetadataUnavailable),
        ):
            watch.next(WAIT_MS)
        assert error.value.unclear is False
        assert PASSWORD not in error.value.message
        assert "user" in error.value.message


def test_the_doctor_looks_at_every_member(etcd: Etcd, tmp_path: Path) -> None:
    away = f"http://127.0.0.1:{free_port()}"
    for endpoints, state in (([etcd.endpoint], "ok"), ([etcd.endpoint, away], "warn"), ([away], "fail")):
        chosen = settings(*endpoints, timeout_ms=500)
        finding = look_at_metadata(Settings(data=tmp_path, metadata=chosen))
        assert finding.state == state
        assert (away in finding.text) == (away in endpoints)


def test_progress_of_subscriptions_is_kept_there_if_the_settings_say_so(etcd: Etcd, tmp_path: Path) -> None:
    chosen = settings(etcd.endpoint)

    async def save(folder: Path) -> SubscriptionProgress | None:
        config = Settings(data=folder, metadata=chosen)
        async with await IcebergStorage.create(config, mover=False) as storage:
            before = await storage.load_progress("billing", "/shop/orders")
            await storage.save_progress("billing", "/shop/orders", SubscriptionProgress(7))
            return before

    assert asyncio.run(save(tmp_path / "one")) is None
    assert asyncio.run(save(tmp_path / "two")) == SubscriptionProgress(7)
    with opened(chosen) as store:
        assert len(store.list("/persistent_storage/iceberg/subscriptions/billing/")) == 1


def _certificates(folder: Path) -> None:
    """A certificate authority, and one certificate for server and client."""
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1", encoding="utf-8")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for command in (
        ["req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test ca", "-days", "2"],
        ["req", *key, "-keyout", "own.key", "-out", "own.csr", "-subj", "/CN=test"],
        [
            *("x509", "-req", "-in", "own.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
            *("-out", "own.pem", "-days", "2", "-extfile", "names"),
        ],
    ):
        subprocess.run(["openssl", *command], cwd=folder, check=True, capture_output=True)


def test_both_sides_can_show_certificates(tmp_path: Path) -> None:
    _certificates(tmp_path)
    ca, cert, key = (tmp_path / name for name in ("ca.pem", "own.pem", "own.key"))
    options = ["--cert-file", cert, "--key-file", key, "--trusted-ca-file", ca, "--client-cert-auth"]
    with etcd_server(tmp_path / "etcd", options, "https") as server:
        with opened(settings(server.endpoint, ca_path=ca, cert_path=cert, key_path=key)) as store:
            assert store.put_if("/a", b"one", ABSENT) is not None
        for wrong in ({"ca_path": ca}, {"cert_path": cert, "key_path": key}):
            mistaken = settings(server.endpoint, timeout_ms=500, **wrong)
            with opened(mistaken) as store, pytest.raises(frazil.MetadataUnavailable, match="metadata: https://"):
                store.get("/a")
