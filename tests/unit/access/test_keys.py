"""API keys: their form, their hash, their record."""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable
from types import SimpleNamespace

import pytest

import frazil
from frazil.node.access import keys as keys_module
from frazil.node.access.keys import (
    KEY_BYTES_MAX,
    KeyRecord,
    UnreadableKey,
    new_key,
    parse_key,
    rotated_key,
)

NOW_US = 1_700_000_000_000_000
DAY_US = 86_400_000_000


def secret_of(key: str) -> str:
    given = parse_key(key)
    assert given is not None
    return given.secret


def test_a_key_has_a_public_id_and_256_random_bits() -> None:
    record, key = new_key("alice", "", NOW_US, None)
    assert key.startswith(f"frz_{record.id}_")
    assert parse_key(key) == (record.id, key.rpartition("_")[2])
    made = [new_key("alice", "", NOW_US, None)[1] for _ in range(5)]
    assert len({*made, key}) == 6
    assert {len(one) for one in made} == {69}


@pytest.mark.parametrize(
    "text",
    [
        *("", "frz_", "frz__", "frz_" + "a" * 12, f"frz_{'a' * 12}_{'a' * 51}", f"frz_{'a' * 12}_{'a' * 53}"),
        *(f"FRZ_{'a' * 12}_{'a' * 52}", f"frz_{'A' * 12}_{'a' * 52}", f"frz_{'a' * 12}_{'a' * 52}\n"),
        *(f"frz_{'1' * 12}_{'a' * 52}", "frz_" + "a" * 2**20, f"frz_{'a' * 12}_{'ä' * 52}", "a" * (KEY_BYTES_MAX + 1)),
    ],
)
def test_anything_but_the_exact_form_is_no_key(text: str) -> None:
    assert parse_key(text) is None


def test_the_secret_is_in_no_record_and_no_repr() -> None:
    record, key = new_key("alice", "for tests", NOW_US, None)
    secret = secret_of(key)
    hashed = record.secrets[0].digest
    for text in (repr(record), str(record.as_dict()), record.encode().decode()):
        assert secret not in text
    assert repr(hashed) not in repr(record)
    assert "secrets" not in record.as_dict()


def test_a_record_is_the_same_after_it_was_stored() -> None:
    record, _ = rotated_key(new_key("alice", "für Tests", NOW_US, 1_000)[0], NOW_US + 5, 60_000)
    assert KeyRecord.decode(record.id, record.encode()) == record
    stored = json.loads(record.encode())["secrets"][0]
    assert (stored["n"], stored["r"], stored["p"]) == (2**14, 8, 1)


def test_only_the_right_secret_matches() -> None:
    record, key = new_key("alice", "", NOW_US, None)
    secret = secret_of(key)
    assert record.matching(secret, NOW_US) is record.secrets[0]
    wrong = secret[:-1] + ("b" if secret[-1] == "a" else "a")
    assert record.matching(wrong, NOW_US) is None
    other, _ = new_key("alice", "", NOW_US, None)
    assert other.secrets[0].salt != record.secrets[0].salt


def test_an_expired_key_matches_nothing() -> None:
    record, key = new_key("alice", "", NOW_US, 1_000)
    assert record.expires_us == NOW_US + 1_000_000
    assert record.matching(secret_of(key), NOW_US + 999_999) is not None
    assert record.matching(secret_of(key), NOW_US + 1_000_000) is None


def test_after_a_rotation_the_old_secret_is_valid_for_the_overlap_alone() -> None:
    first, key = new_key("alice", "", NOW_US, None)
    second, newer = rotated_key(first, NOW_US, 1_000)
    assert second.matching(secret_of(newer), NOW_US + DAY_US) is not None
    assert second.matching(secret_of(key), NOW_US + 999_999) is not None
    assert second.matching(secret_of(key), NOW_US + 1_000_000) is None
    third, _ = rotated_key(second, NOW_US, 1_000)
    assert len(third.secrets) == 2
    assert third.matching(secret_of(key), NOW_US) is None, "only one secret before the newest is kept"
    fourth, _ = rotated_key(third, NOW_US, 0)
    assert len(fourth.secrets) == 1


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: new_key("", "", NOW_US, None), "owner"),
        (lambda: new_key("a" * 129, "", NOW_US, None), "owner"),
        (lambda: new_key("a\nb", "", NOW_US, None), "owner"),
        (lambda: new_key("a", "b" * 513, NOW_US, None), "description"),
        (lambda: new_key("a", "", NOW_US, 0), "lifetime_ms"),
        (lambda: new_key("a", "", NOW_US, 2**60), "lifetime_ms"),
        (lambda: rotated_key(new_key("a", "", NOW_US, None)[0], NOW_US, -1), "overlap_ms"),
        (lambda: rotated_key(new_key("a", "", NOW_US, None)[0], NOW_US, 2**40), "overlap_ms"),
    ],
)
def test_a_wrong_field_is_named(call: Callable[[], object], field: str) -> None:
    with pytest.raises(frazil.InvalidInput) as refused:
        call()
    assert refused.value.field == field


@pytest.mark.parametrize("changed", [{"n": 2**20}, {"r": 0}, {"p": 1_000}, {"hash": ""}, {"salt": "?"}, {"n": None}])
def test_a_record_with_parameters_that_cost_too_much_is_refused(changed: dict[str, object]) -> None:
    record, _ = new_key("alice", "", NOW_US, None)
    content = json.loads(record.encode())
    content["secrets"][0] |= changed
    with pytest.raises(UnreadableKey):
        KeyRecord.decode(record.id, json.dumps(content).encode())


def test_a_secret_is_compared_by_its_whole_hash_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much of it is right. `bench/security.py` measures the time that it takes."""
    record, key = new_key("alice", "", NOW_US, None)
    secret = secret_of(key)
    compared: list[tuple[int, int]] = []

    def compare(given: bytes, stored: bytes) -> bool:
        compared.append((len(given), len(stored)))
        return hmac.compare_digest(given, stored)

    monkeypatch.setattr(keys_module, "hmac", SimpleNamespace(compare_digest=compare))
    nearly, not_at_all = secret[:-1] + ("b" if secret[-1] == "a" else "a"), "".join(reversed(secret))
    for wrong in (nearly, not_at_all):
        assert record.matching(wrong, NOW_US) is None
    assert len(compared) == 2
    assert {size for pair in compared for size in pair} == {len(record.secrets[0].digest)}
