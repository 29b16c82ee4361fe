"""Verification of API keys: right ones pass, wrong ones cost little."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import frazil
from frazil.core.clock import SystemClock
from frazil.core.principal import Principal
from frazil.meta.sqlite import SqliteStore
from frazil.node.access import key_verifier
from frazil.node.access.directory import AccessDirectory
from frazil.node.access.grants import KeyAdmin
from frazil.node.access.key_verifier import FAILURES_PER_S_MAX, KeyVerifier, RecentEntries
from frazil.node.access.keys import KeyRecord, SecretHash
from frazil.testing import FakeClock


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[AccessDirectory]:
    store = SqliteStore(tmp_path / "meta.db")
    found = AccessDirectory(store)
    yield found
    found.close()
    store.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def keys(directory: AccessDirectory, clock: FakeClock) -> KeyAdmin:
    return KeyAdmin(directory, clock)


@pytest.fixture
def verifier(directory: AccessDirectory, clock: FakeClock) -> Iterator[KeyVerifier]:
    found = KeyVerifier(directory, clock)
    yield found
    found.close()


@pytest.fixture
def hashes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The secrets that were hashed."""
    done: list[str] = []
    hashed = SecretHash.fits

    def counted(self: SecretHash, secret: str) -> bool:
        done.append(secret)
        return hashed(self, secret)

    monkeypatch.setattr(SecretHash, "fits", counted)
    return done


def wrong(key: str, number: int = 0) -> str:
    """The key with another secret."""
    digits = "".join("abcdefghijklmnop"[int(one, 16)] for one in f"{number:08x}")
    return key[:-8] + digits


def verified(verifier: KeyVerifier, *given: str) -> list[Principal | BaseException | None]:
    async def all_at_once() -> list[Principal | BaseException | None]:
        return await asyncio.gather(*(verifier.verify(one) for one in given), return_exceptions=True)

    return asyncio.run(all_at_once())


def one(verifier: KeyVerifier, given: str) -> Principal | None:
    return asyncio.run(verifier.verify(given))


def test_a_right_key_is_hashed_once_and_then_known(keys: KeyAdmin, verifier: KeyVerifier, hashes: list[str]) -> None:
    record, key = keys.create("alice")
    assert verifier.cached(key) is None
    who = one(verifier, key)
    assert who is not None
    assert (who.name, who.roles, who.expires_us) == (f"key:{record.id}", (), None)
    assert verifier.cached(key) == who
    assert one(verifier, key) == who
    assert len(hashes) == 1


def test_concurrent_callers_with_one_key_share_its_hash(
    keys: KeyAdmin, verifier: KeyVerifier, hashes: list[str]
) -> None:
    _, key = keys.create("alice")
    found = verified(verifier, *[key] * 100)
    assert all(isinstance(who, Principal) for who in found)
    assert len(hashes) == 1


def test_a_known_key_is_hashed_again_after_its_time(
    keys: KeyAdmin, verifier: KeyVerifier, clock: FakeClock, hashes: list[str]
) -> None:
    _, key = keys.create("alice")
    one(verifier, key)
    clock.advance(key_verifier.CACHED_US_MAX)
    assert verifier.cached(key) is None
    one(verifier, key)
    assert len(hashes) == 2


def test_other_credentials_are_left_to_other_verifiers(verifier: KeyVerifier) -> None:
    assert verified(verifier, "", "eyJ.eyJ.sig", "a" * 2**20) == [None] * 3
    assert verifier.cached("a" * 2**20) is None


@pytest.mark.parametrize("given", ["frz_", f"frz_{'a' * 12}_{'a' * 52}", "frz_" + "a" * 2**20])
def test_an_unknown_or_malformed_key_is_refused_without_a_hash(
    given: str, verifier: KeyVerifier, hashes: list[str]
) -> None:
    with pytest.raises(frazil.Unauthenticated) as refused:
        one(verifier, given)
    assert given not in str(refused.value)
    assert not hashes


def test_a_wrong_secret_is_refused_and_remembered(keys: KeyAdmin, verifier: KeyVerifier, hashes: list[str]) -> None:
    _, key = keys.create("alice")
    for _ in range(3):
        with pytest.raises(frazil.Unauthenticated):
            one(verifier, wrong(key))
    assert len(hashes) == 1
    assert one(verifier, key) is not None


def test_a_secret_that_was_wrong_is_tried_again_once_its_key_has_changed(
    keys: KeyAdmin, verifier: KeyVerifier, directory: AccessDirectory
) -> None:
    """A server may see a new secret before it sees the change that makes it right."""
    record, _ = keys.create("alice")
    rotated, key = keys.rotate(record.id)
    # as if the rotation was not seen yet
    directory._follower.apply(f"/security/keys/{record.id}", record.encode(), 10**9)
    with pytest.raises(frazil.Unauthenticated):
        one(verifier, key)
    directory._follower.apply(f"/security/keys/{record.id}", rotated.encode(), 10**9 + 1)
    assert one(verifier, key) is not None


def test_a_revoked_key_is_refused_at_once(keys: KeyAdmin, verifier: KeyVerifier) -> None:
    record, key = keys.create("alice")
    who = one(verifier, key)
    assert who is not None
    assert verifier.is_valid(who)
    keys.revoke(record.id)
    assert not verifier.is_valid(who)
    assert verifier.cached(key) is None
    with pytest.raises(frazil.Unauthenticated):
        one(verifier, key)


def test_an_expired_key_is_refused(keys: KeyAdmin, verifier: KeyVerifier, clock: FakeClock) -> None:
    _, key = keys.create("alice", lifetime_ms=1_000)
    who = one(verifier, key)
    assert who is not None
    assert who.expires_us == clock.now_us() + 1_000_000
    clock.advance(1_000_000)
    assert not verifier.is_valid(Principal(who.name))
    assert verifier.cached(key) is None
    with pytest.raises(frazil.Unauthenticated):
        one(verifier, key)


def test_a_rotated_secret_ends_with_the_overlap(keys: KeyAdmin, verifier: KeyVerifier, clock: FakeClock) -> None:
    record, old = keys.create("alice")
    before = one(verifier, old)
    _, new = keys.rotate(record.id, overlap_ms=1_000)
    assert before is not None
    assert verifier.is_valid(before)
    assert [isinstance(who, Principal) for who in verified(verifier, old, new)] == [True, True]
    clock.advance(1_000_000)
    assert not verifier.is_valid(before), "also a caller that was known before the rotation"
    assert verifier.cached(old) is None
    after = verifier.cached(new)
    assert after is not None
    keys.rotate(record.id)
    assert not verifier.is_valid(after)
    assert verifier.is_valid(Principal(f"key:{record.id}")), "the key itself is still there"


def test_a_flood_against_one_key_neither_delays_another_nor_grows(
    directory: AccessDirectory, hashes: list[str]
) -> None:
    clock = SystemClock()
    keys, verifier = KeyAdmin(directory, clock), KeyVerifier(directory, clock)
    _, attacked = keys.create("alice")
    _, other = keys.create("bob")
    began = time.monotonic()
    one(verifier, attacked)
    hash_s = time.monotonic() - began

    async def flood() -> tuple[float, list[str]]:
        answers: list[str] = []
        ends = time.monotonic() + 2

        async def attack(first: int) -> None:
            number = first
            while time.monotonic() < ends:
                try:
                    await verifier.verify(wrong(attacked, number))
                except frazil.FrazilError as error:
                    answers.append(error.code)
                number += 8
                await asyncio.sleep(0)

        attackers = [asyncio.create_task(attack(number)) for number in range(8)]
        await asyncio.sleep(0.5)
        began = time.monotonic()
        assert await verifier.verify(other) is not None
        took_s = time.monotonic() - began
        assert verifier.cached(attacked) is not None, "who is known is not disturbed"
        await asyncio.gather(*attackers)
        return took_s, answers

    before = threading.active_count()
    began = time.monotonic()
    took_s, answers = asyncio.run(flood())
    tried_max = (time.monotonic() - began + 2) * FAILURES_PER_S_MAX
    verifier.close()
    assert took_s < max(1, 10 * hash_s), "a busy machine hashes slowly"
    assert set(answers) == {"unauthenticated", "try_later"}
    assert len(answers) > 10 * tried_max, "the flood was one"
    assert len(hashes) <= tried_max + 2
    assert not verifier._pending
    assert len(verifier._wrong) <= tried_max
    assert threading.active_count() <= before + key_verifier.THREADS


def test_a_key_that_was_verified_long_ago_passes_during_a_flood_against_its_id(
    keys: KeyAdmin, verifier: KeyVerifier, clock: FakeClock
) -> None:
    record, key = keys.create("alice")
    assert one(verifier, key) is not None
    clock.advance(key_verifier.CACHED_US_MAX)
    for number in range(FAILURES_PER_S_MAX):
        with pytest.raises(frazil.Unauthenticated):
            one(verifier, wrong(key, number))
    with pytest.raises(frazil.TryLater):
        one(verifier, wrong(key, FAILURES_PER_S_MAX))
    found = one(verifier, key)
    assert found is not None
    assert found.name == record.principal
    keys.rotate(record.id)
    with pytest.raises((frazil.TryLater, frazil.Unauthenticated)):
        one(verifier, key)


def test_a_flood_against_many_keys_waits_in_a_bounded_queue(
    directory: AccessDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()

    def slow(self: KeyRecord, secret: str, now_us: int) -> None:
        released.wait(30)

    monkeypatch.setattr(KeyRecord, "matching", slow)
    clock = SystemClock()
    keys, verifier = KeyAdmin(directory, clock), KeyVerifier(directory, clock)
    made = [keys.create("alice")[1] for _ in range(key_verifier.QUEUE_MAX + 5)]

    async def all_at_once() -> list[str]:
        waiting = [asyncio.create_task(verifier.verify(key)) for key in made]
        done, _ = await asyncio.wait(waiting, timeout=0.2)
        assert len(done) == 5
        assert len(verifier._pending) == key_verifier.QUEUE_MAX
        released.set()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        return sorted(error.code for error in found if isinstance(error, frazil.FrazilError))

    codes = asyncio.run(all_at_once())
    verifier.close()
    assert codes == ["try_later"] * 5 + ["unauthenticated"] * key_verifier.QUEUE_MAX


def test_a_caller_that_goes_away_leaves_the_check_to_the_others(keys: KeyAdmin, verifier: KeyVerifier) -> None:
    _, key = keys.create("alice")
    released = threading.Event()

    async def cancelled() -> Principal | None:
        for _ in range(key_verifier.THREADS):  # so that the check waits in the queue, where it could be cancelled
            verifier._pool.submit(released.wait, 30)
        first, second = (asyncio.create_task(verifier.verify(key)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        released.set()
        return await second

    assert asyncio.run(cancelled()) is not None
    assert not verifier._pending


def test_what_is_remembered_is_bounded() -> None:
    entries: RecentEntries[int] = RecentEntries(3)
    for number in range(10):
        entries.put(bytes([number]), number)
    assert len(entries) == 3
    assert [entries.get(bytes([number])) for number in (6, 7, 8, 9)] == [None, 7, 8, 9]
