"""etcd is restored from an older copy, or does not let us in any more: told, and mended without a restart."""

from __future__ import annotations

import base64
import time

import pytest
from metas import opened, settings

import frazil
from frazil.meta.etcd_watch import range_end
from frazil.meta.store import ABSENT, Change, StoredEntry
from parts.etcd import PASSWORD, Etcd, gateway, turn_on_users
from parts.etcd_proxy import proxy_before_etcd

WAIT_MS = 30_000


def test_a_watch_says_that_etcd_was_restored_from_an_older_copy(own_etcd: Etcd) -> None:
    """It would wait for a revision that comes only after others, which it would never tell."""
    with opened(settings(own_etcd.endpoint, timeout_ms=20_000)) as store:
        store.put_if("/s/a", b"one", ABSENT)
        copy = own_etcd.copy("copy")
        with store.watch("/s/", 0) as watch:
            for number in range(10):
                store.put_if(f"/s/{number}", b"lost", ABSENT)
            assert [watch.next(WAIT_MS) for _ in range(11)][-1] is not None
            own_etcd.restore(copy)
            store.put_if("/s/b", b"two", ABSENT)
            with pytest.raises(frazil.RevisionCompacted, match="list again"):
                watch.next(WAIT_MS)
        listing = store.snapshot("/s/")
        assert [entry.key for entry in listing.entries] == ["/s/a", "/s/b"]
        with store.watch("/s/", listing.revision) as again:
            made = store.put_if("/s/c", b"three", ABSENT)
            assert again.next(WAIT_MS) == Change("/s/c", b"three", made or 0)
        assert store.steps_back > 0


def test_a_change_that_a_restored_etcd_has_forgotten_is_not_told_as_made(own_etcd: Etcd) -> None:
    """The slip in the copy says of an earlier change that it was made."""
    with proxy_before_etcd(own_etcd.port) as proxy, opened(settings(proxy.endpoint, timeout_ms=20_000)) as store:
        store.put_if("/a", b"one", ABSENT)
        copy = own_etcd.copy("copy")
        store.put_if("/b", b"two", ABSENT)
        proxy.lose_answer(lambda: own_etcd.restore(copy))
        made = store.put_if("/c", b"three", ABSENT)
        assert proxy.lost == 1
        assert made is not None
        assert store.get("/c") == StoredEntry("/c", b"three", made)
        assert store.get("/b") is None


def test_who_is_no_longer_let_in_is_told_and_let_in_again_without_a_restart(own_etcd: Etcd) -> None:
    """A password that was changed, a user that was deleted, a right that was taken: each is told at once and with its
    reason, not after attempts until the time is over, and the next call after it is mended works."""
    turn_on_users(own_etcd)

    def administer(path: str, **body: object) -> None:
        told = gateway(own_etcd.endpoint, "/v3/auth/authenticate", {"name": "root", "password": PASSWORD})
        gateway(own_etcd.endpoint, path, body, str(told["token"]))

    chosen = settings(own_etcd.endpoint, username="frazil", password=PASSWORD, timeout_ms=60_000)
    key, end = (base64.b64encode(each).decode() for each in (chosen.root.encode(), range_end(chosen.root.encode())))
    right = {"permType": "READWRITE", "key": key, "range_end": end}

    def let_in() -> None:
        administer("/v3/auth/user/add", name="frazil", password=PASSWORD)
        administer("/v3/auth/user/grant", user="frazil", role="ours")

    administer("/v3/auth/role/add", name="ours")
    administer("/v3/auth/role/grant", name="ours", perm=right)
    let_in()
    with opened(chosen) as store:
        revision = store.put_if("/a", b"0", ABSENT)
        for forbid, allow, reason in (
            (
                lambda: administer("/v3/auth/user/changepw", name="frazil", password="another"),
                lambda: administer("/v3/auth/user/changepw", name="frazil", password=PASSWORD),
                "invalid user ID or password",
            ),
            (lambda: administer("/v3/auth/user/delete", name="frazil"), let_in, "user"),
            (
                lambda: administer("/v3/auth/role/revoke", role="ours", key=key, range_end=end),
                lambda: administer("/v3/auth/role/grant", name="ours", perm=right),
                "permission denied",
            ),
        ):
            forbid()
            began = time.monotonic()
            for call in (lambda: store.get("/a"), lambda: store.put_all({"/a": b"1"}), lambda: store.snapshot("/")):
                with pytest.raises(frazil.MetadataUnavailable, match=reason) as told:
                    call()
                assert told.value.unclear is False, "it was refused, and nothing was changed"
                assert PASSWORD not in told.value.message
            assert time.monotonic() - began < 30
            allow()
            found = store.get("/a")
            assert found is not None
            assert (found.value, found.revision) == (b"0", revision)
            with store.watch("/", found.revision) as watch:
                revision = store.put_if("/a", b"0", found.revision)
                assert watch.next(WAIT_MS) == Change("/a", b"0", revision or 0)
