"""Keys, roles and bindings in every kind of metadata store."""

from __future__ import annotations

import json
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from metas import Place

import frazil
from frazil.core import access
from frazil.core.access import Action
from frazil.core.clock import SystemClock
from frazil.core.principal import Principal
from frazil.meta.store import ABSENT, MetaStore
from frazil.node.access.directory import AccessDirectory, binding_key
from frazil.node.access.grants import BindingAdmin, KeyAdmin, RoleAdmin
from frazil.node.access.roles import Binding, decide

TOPIC = access.topic("/shop/orders")
READ = {"effect": "allow", "actions": ["read"], "kind": "topic", "pattern": "*"}
DENY = {"effect": "deny", "actions": ["read"], "kind": "topic", "pattern": "/shop/*"}


@pytest.fixture
def directory(store: MetaStore) -> Iterator[AccessDirectory]:
    found = AccessDirectory(store)
    yield found
    found.close()


def may_read(directory: AccessDirectory, name: str, *roles: str) -> bool:
    return decide(directory.grants(Principal(name, roles)), Action.READ, TOPIC)


def within_a_second(found: Callable[[], bool]) -> bool:
    """Time in which a busy machine lets nobody run is not counted: a look of 5 ms counts for 10 ms at most."""
    waited, before = 0.0, time.monotonic()
    while not found():
        if waited > 1:
            return False
        threading.Event().wait(0.005)
        before, begun = time.monotonic(), before
        waited += min(before - begun, 0.01)
    return True


def revoke_in_process(place: Place, key_id: str) -> None:
    store = place.open()
    KeyAdmin(AccessDirectory(store, follows=False), SystemClock()).revoke(key_id)
    store.close()


def test_changes_of_another_store_are_effective_within_a_second(place: Place, directory: AccessDirectory) -> None:
    other = place.open()
    there = AccessDirectory(other, follows=False)
    record, _ = KeyAdmin(there, SystemClock()).create("alice")
    RoleAdmin(there).put("mine", [READ])
    BindingAdmin(there).add(record.principal, "mine", "/shop/*")
    assert within_a_second(lambda: directory.key(record.id) == record and may_read(directory, record.principal))
    before = directory.generation
    RoleAdmin(there).put("mine", [READ, DENY])
    assert within_a_second(lambda: not may_read(directory, record.principal))
    assert directory.generation > before
    RoleAdmin(there).put("mine", [READ])
    assert within_a_second(lambda: may_read(directory, record.principal))
    BindingAdmin(there).remove(record.principal, "mine", "/shop/*")
    assert within_a_second(lambda: not may_read(directory, record.principal))
    other.close()


def test_a_key_that_another_process_revokes_is_gone_within_a_second(place: Place, directory: AccessDirectory) -> None:
    record, _ = KeyAdmin(directory, SystemClock()).create("alice")
    BindingAdmin(directory).add(record.principal, "reader")
    process = multiprocessing.get_context("spawn").Process(target=revoke_in_process, args=(place, record.id))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert within_a_second(lambda: directory.key(record.id) is None and not directory.state.bindings)


def test_a_change_is_effective_here_when_its_call_returns(directory: AccessDirectory) -> None:
    keys, bindings = KeyAdmin(directory, SystemClock()), BindingAdmin(directory)
    for _ in range(20):
        record, _ = keys.create("alice")
        assert directory.key(record.id) is not None
        bindings.add(record.principal, "reader")
        assert may_read(directory, record.principal)
        bindings.remove(record.principal, "reader")
        assert not may_read(directory, record.principal)
        keys.revoke(record.id)
        assert directory.key(record.id) is None


def test_a_late_notice_of_an_older_change_is_ignored(store: MetaStore) -> None:
    """The watch repeats the changes of this process, while a later one is known already."""
    directory = AccessDirectory(store, follows=False)
    keys = KeyAdmin(directory, SystemClock())
    record, _ = keys.create("alice")
    first = store.get(f"/security/keys/{record.id}")
    rotated, _ = keys.rotate(record.id)
    second = store.get(f"/security/keys/{record.id}")
    assert first is not None
    assert second is not None
    directory._follower._apply(first.key, first.value, first.revision, is_final=True)
    assert directory.key(record.id) == rotated
    keys.revoke(record.id)
    for late in (first, second):
        directory._follower._apply(late.key, late.value, late.revision, is_final=True)
        assert directory.key(record.id) is None


def test_what_another_has_undone_before_the_call_returns_stays_undone(
    place: Place, store: MetaStore, directory: AccessDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch delivers a change of this process and its deletion by another before the call itself applies it."""
    other, put_if = place.open(), store.put_if
    there = BindingAdmin(AccessDirectory(other, follows=False))

    def undone(key: str, value: bytes, revision: int) -> int | None:
        before = directory.generation
        made = put_if(key, value, revision)
        there.remove("jwt:alice", "reader")
        assert within_a_second(lambda: directory.generation >= before + 2)
        return made

    monkeypatch.setattr(store, "put_if", undone)
    BindingAdmin(directory).add("jwt:alice", "reader")
    assert other.get(binding_key(Binding("jwt:alice", "reader"))) is None
    assert not may_read(directory, "jwt:alice")
    other.close()


def test_a_directory_that_is_opened_later_has_all(store: MetaStore, directory: AccessDirectory) -> None:
    record, _ = KeyAdmin(directory, SystemClock()).create("alice")
    RoleAdmin(directory).put("mine", [READ])
    bindings = BindingAdmin(directory)
    for principal in (record.principal, "jwt:https://idp.example/alice", "cert:CN=ä, O=b"):
        bindings.add(principal, "mine")
        bindings.add(principal, "mine", "/shop/*")
        bindings.add(principal, "mine")
    later = AccessDirectory(store, follows=False)
    assert later.state == directory.state
    assert len(BindingAdmin(later).list()) == 6
    assert [one.scope for one in BindingAdmin(later).list("cert:CN=ä, O=b")] == ["*", "/shop/*"]


def test_concurrent_rotations_are_all_made_one_after_another(place: Place, directory: AccessDirectory) -> None:
    record, _ = KeyAdmin(directory, SystemClock()).create("alice")
    made: list[str] = []

    def rotate() -> None:
        store = place.open()
        made.append(KeyAdmin(AccessDirectory(store, follows=False), SystemClock()).rotate(record.id, 60_000)[1])
        store.close()

    threads = [threading.Thread(target=rotate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 4
    assert within_a_second(lambda: (found := directory.key(record.id)) is not None and len(found.secrets) == 2)


def test_after_a_compaction_the_directory_reads_all_again(place: Place, store: MetaStore) -> None:
    directory = AccessDirectory(store, follows=False)
    before = place.compact()
    RoleAdmin(AccessDirectory(store, follows=False)).put("mine", [READ])
    following = threading.Thread(target=directory._follower._follow, args=(before,), daemon=True)
    following.start()
    assert within_a_second(lambda: "mine" in directory.state.roles)
    directory.close()
    following.join(10)
    assert not following.is_alive()


def test_what_cannot_be_read_grants_nothing_and_takes_all_rights(store: MetaStore, directory: AccessDirectory) -> None:
    BindingAdmin(directory).add("cert:a", "reader")
    RoleAdmin(directory).put("mine", [READ])
    BindingAdmin(directory).add("cert:b", "reader")
    BindingAdmin(directory).add("cert:b", "mine", "/other/*")
    assert may_read(directory, "cert:a")
    assert may_read(directory, "cert:b")
    store.put_all({"/security/roles/mine": b'{"rules": [{"effect": "later"}]}', "/security/keys/abc": b"?"})
    assert within_a_second(lambda: not may_read(directory, "cert:b"))
    assert may_read(directory, "cert:a")
    store.put_all({binding_key(Binding("cert:a", "newer")): b'{"condition": 1}'})
    assert within_a_second(lambda: not may_read(directory, "cert:a"))
    assert directory.key("abc") is None
    RoleAdmin(directory).put("mine", [READ])
    assert may_read(directory, "cert:b")


def test_roles_of_a_token_count_everywhere_and_unknown_ones_grant_nothing(directory: AccessDirectory) -> None:
    assert may_read(directory, "jwt:alice", "reader")
    assert not may_read(directory, "jwt:alice", "mine")
    assert not may_read(directory, "jwt:alice", "~unreadable", "")
    RoleAdmin(directory).put("mine", [DENY])
    assert not may_read(directory, "jwt:alice", "reader", "mine")


def test_a_role_is_not_deleted_while_somebody_gets_it(
    place: Place, store: MetaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the binding would outlive its role, and come to life again with another role of that name."""
    other, delete = place.open(), store.delete
    here, there = (AccessDirectory(each, follows=False) for each in (store, other))
    RoleAdmin(here).put("mine", [READ])

    def late(key: str, revision: int) -> bool:
        monkeypatch.undo()
        BindingAdmin(there).add("jwt:alice", "mine")
        return delete(key, revision)

    monkeypatch.setattr(store, "delete", late)
    with pytest.raises(frazil.InvalidInput, match=r"1 binding\(s\)"):
        RoleAdmin(here).delete("mine")
    assert store.get("/security/roles/mine") is not None
    other.close()


def test_nobody_gets_a_role_that_is_deleted_meanwhile(
    place: Place, store: MetaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, put_if = place.open(), store.put_if
    here, there = (AccessDirectory(each, follows=False) for each in (store, other))
    RoleAdmin(here).put("mine", [READ])

    def late(*given: Any, **named: Any) -> int | None:
        monkeypatch.undo()
        RoleAdmin(there).delete("mine")
        return put_if(*given, **named)

    monkeypatch.setattr(store, "put_if", late)
    with pytest.raises(frazil.GrantNotFound):
        BindingAdmin(here).add("jwt:alice", "mine")
    RoleAdmin(here).put("mine", [READ])
    assert store.list("/security/bindings/") == []
    assert not may_read(AccessDirectory(other, follows=False), "jwt:alice")
    other.close()


def test_mistakes_are_told(directory: AccessDirectory) -> None:
    keys, roles, bindings = KeyAdmin(directory, SystemClock()), RoleAdmin(directory), BindingAdmin(directory)
    for call in (
        lambda: keys.revoke("aaaaaaaaaaaa"),
        lambda: keys.rotate("../roles/a"),
        lambda: roles.get("mine"),
        lambda: roles.delete("mine"),
        lambda: bindings.add("cert:a", "mine"),
        lambda: bindings.add("key:aaaaaaaaaaaa", "reader"),
        lambda: bindings.remove("cert:a", "reader"),
        lambda: bindings.remove("cert:" + "ä" * 2_000, "reader"),
    ):
        with pytest.raises(frazil.GrantNotFound):
            call()
    roles.put("mine", [READ])
    bindings.add("cert:a", "mine")
    with pytest.raises(frazil.InvalidInput, match="remove them first"):
        roles.delete("mine")
    bindings.remove("cert:a", "mine")
    roles.delete("mine")
    with pytest.raises(frazil.InvalidInput, match="built in"):
        roles.delete("admin")


def test_records_are_stored_as_documented(store: MetaStore, directory: AccessDirectory) -> None:
    record, key = KeyAdmin(directory, SystemClock()).create("alice")
    RoleAdmin(directory).put("mine", [READ])
    BindingAdmin(directory).add("jwt:a/b", "mine", "/shop/*")
    found = {entry.key: entry.value for entry in store.list("/security/")}
    assert len(found) == 3
    assert json.loads(found["/security/roles/mine"]) == {"rules": [READ]}
    (binding,) = (key for key in found if key.startswith("/security/bindings/jwt%3Aa%2Fb/"))
    assert json.loads(found[binding]) == {"principal": "jwt:a/b", "role": "mine", "scope": "/shop/*"}
    assert set(json.loads(found[f"/security/keys/{record.id}"])) == {
        *("owner", "description", "created_us", "expires_us", "rotated_us", "secrets")
    }
    secret = key.rpartition("_")[2].encode()
    assert not any(secret in value for value in found.values())
    assert store.put_if(f"/security/keys/{record.id}", b"", ABSENT) is None
