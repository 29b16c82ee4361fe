"""Subjects, versions and ids, in one process and in several."""

from __future__ import annotations

import json
import multiprocessing
import threading
from pathlib import Path

import pytest
from schemas import schema

import frazil
from frazil.meta.sqlite import SqliteStore
from frazil.meta.store import MetaStore
from frazil.registry.kinds import CompatibilityMode
from frazil.registry.registry import VERSIONS_MAX, Registered, SchemaRegistry
from frazil.testing import FakeClock

FIRST, SECOND, WRONG = schema(a="string"), schema(a="string", b="string"), schema(a="integer")


def test_ids_are_of_subjects_and_versions_share_them(registry: SchemaRegistry) -> None:
    made = [registry.register(subject, "json", content) for subject in ("one", "two") for content in (FIRST, SECOND)]
    assert [(each.schema_id, each.version, each.is_new_version) for each in made] == [
        (1, 1, True),
        (1, 2, True),
        (2, 1, True),
        (2, 2, True),
    ]
    assert registry.subjects() == ["one", "two"]
    assert registry.schema_id("two") == 2


def test_the_same_content_is_the_version_that_is_there(registry: SchemaRegistry) -> None:
    first = registry.register("orders", "json_schema", FIRST)
    registry.register("orders", "json_schema", SECOND)
    spaced = json.dumps(json.loads(FIRST), indent=4).encode()
    assert registry.register("orders", "json", spaced) == Registered(1, 1, False, first.fingerprint)
    assert len(registry.versions("orders")) == 2


def test_a_version_has_what_was_said_of_it(registry: SchemaRegistry, clock: FakeClock) -> None:
    clock.advance(5)
    words = {"description": "Orders, ünd", "created_by": "anna", "tags": ["a", "b"]}
    done = registry.register("orders", "json", FIRST, **words)  # type: ignore[arg-type]
    clock.advance(7)
    registry.register("orders", "json", SECOND)
    first, second = registry.versions("orders")
    assert (first.version, first.description, first.created_by, first.tags) == (1, "Orders, ünd", "anna", ("a", "b"))
    assert (first.schema_id, first.fingerprint) == (1, done.fingerprint)
    assert second.created_at_us - first.created_at_us == 7
    assert registry.version("orders", 1).info == first


def test_versions_are_found_by_subject_and_by_id(registry: SchemaRegistry) -> None:
    registry.register("other", "string", b"")
    registry.register("orders", "json", FIRST)
    registry.register("orders", "json", SECOND)
    assert registry.latest("orders") == registry.version("orders", 2) == registry.get(2) == registry.get(2, 2)
    found = registry.get(2, 1)
    assert (found.subject, found.info.version, found.compatibility_mode) == ("orders", 1, CompatibilityMode.BACKWARD)
    told = json.loads(found.definition.tagged_json())
    assert told == {"JsonSchema": {"raw_schema": FIRST.decode(), "fingerprint": found.info.fingerprint}}


def test_what_is_not_there_is_not_found(registry: SchemaRegistry) -> None:
    registry.register("orders", "json", FIRST)
    for look in (
        lambda: registry.latest("none"),
        lambda: registry.versions("none"),
        lambda: registry.version("orders", 2),
        lambda: registry.version("orders", 0),
        lambda: registry.get(2),
        lambda: registry.get(1, 2),
        lambda: registry.check_compatibility("none", "json", FIRST),
        lambda: registry.set_compatibility_mode("none", "full"),
        lambda: registry.delete_version("none", 1),
        lambda: registry.delete_version("orders", 2),
        lambda: registry.validator(1, 2),
        lambda: registry.schema_id("none"),
    ):
        with pytest.raises(frazil.SchemaNotFound):
            look()


def test_what_may_not_follow_is_refused_and_nothing_is_kept(registry: SchemaRegistry, store: SqliteStore) -> None:
    registry.register("orders", "json", FIRST)
    before = store.list("/")
    with pytest.raises(frazil.IncompatibleSchema, match=r"version 1 of orders .compatibility backward.: ") as refused:
        registry.register("orders", "json", WRONG)
    assert refused.value.reasons == ["backward: changed type of field /a from string to integer"]
    with pytest.raises(frazil.IncompatibleSchema, match="the type of the schema changed"):
        registry.register("orders", "string", b"")
    assert store.list("/") == before


def test_the_mode_of_a_subject_decides_what_may_follow(registry: SchemaRegistry) -> None:
    registry.register("orders", "json", FIRST)
    assert registry.set_compatibility_mode("orders", "NONE") is CompatibilityMode.NONE
    assert registry.register("orders", "json", WRONG).version == 2
    assert registry.latest("orders").compatibility_mode is CompatibilityMode.NONE
    registry.set_compatibility_mode("orders", "full")
    with pytest.raises(frazil.IncompatibleSchema):
        registry.register("orders", "json", SECOND)
    with pytest.raises(frazil.InvalidInput, match="compatibility_mode: must be one of none, backward, forward, full"):
        registry.set_compatibility_mode("orders", "transitive")
    assert registry.compatibility_mode("orders") is CompatibilityMode.FULL


def test_a_check_looks_at_the_latest_version_alone_and_keeps_nothing(registry: SchemaRegistry) -> None:
    registry.register("orders", "json", FIRST)
    registry.set_compatibility_mode("orders", "none")
    registry.register("orders", "json", WRONG)
    assert registry.check_compatibility("orders", "json", SECOND) == []
    assert registry.check_compatibility("orders", "json", SECOND, "backward") == [
        "backward: changed type of field /a from integer to string"
    ]
    assert registry.check_compatibility("orders", "json", schema(a="integer", c="string"), "full") == []
    with pytest.raises(frazil.InvalidInput, match="compatibility_mode"):
        registry.check_compatibility("orders", "json", SECOND, "")
    with pytest.raises(frazil.InvalidSchema):
        registry.check_compatibility("orders", "json", b"{")
    assert [each.version for each in registry.versions("orders")] == [1, 2]


def test_a_deleted_version_is_gone_and_its_number_is_not_used_again(
    registry: SchemaRegistry, store: SqliteStore
) -> None:
    registry.register("orders", "json", FIRST)
    registry.register("orders", "json", SECOND)
    registry.validator(1, 2)
    registry.delete_version("orders", 2)
    assert registry.latest("orders").info.version == 1
    with pytest.raises(frazil.SchemaNotFound, match="has no version 2"):
        registry.validator(1, 2)
    assert registry.register("orders", "json", SECOND).version == 3
    registry.delete_version("orders", 1)
    registry.delete_version("orders", 3)
    assert registry.versions("orders") == []
    assert len(store.list("/schemas/versions/")) == 0
    with pytest.raises(frazil.SchemaNotFound):
        registry.latest("orders")
    assert registry.check_compatibility("orders", "json", WRONG) == []
    assert registry.register("orders", "avro", b'"string"').schema_id == 1


@pytest.mark.parametrize("subject", ["", "a\n", "x" * 201, "\ud800", "é" * 101, 3])
def test_a_subject_that_is_no_name_is_refused(registry: SchemaRegistry, subject: str) -> None:
    for use in (lambda: registry.register(subject, "string", b""), lambda: registry.latest(subject)):
        with pytest.raises(frazil.InvalidInput, match=r"^subject: "):
            use()


@pytest.mark.parametrize("subject", ["orders-value", "/default/orders", "a b%2F..", "é" * 100, "x" * 200])
def test_a_subject_may_have_any_name(registry: SchemaRegistry, subject: str) -> None:
    registry.register(subject, "string", b"")
    registry.register(subject[:-1], "string", b"")
    assert subject in registry.subjects()
    assert registry.latest(subject).subject == subject


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("description", {"description": "x" * 4097}),
        ("created_by", {"created_by": "x" * 257}),
        ("created_by", {"created_by": "\ud800"}),
        ("tags", {"tags": ["x"] * 33}),
        ("tags", {"tags": ["x" * 129]}),
    ],
)
def test_words_that_are_too_long_are_refused(registry: SchemaRegistry, field: str, words: dict[str, str]) -> None:
    with pytest.raises(frazil.InvalidInput, match=f"^{field}: "):
        registry.register("orders", "string", b"", **words)  # type: ignore[arg-type]


def test_a_definition_that_does_not_fit_the_store_is_refused(registry: SchemaRegistry) -> None:
    comment = b"/*" + b"\x01" * 200_000 + b"*/"
    with pytest.raises(frazil.InvalidSchema, match=r"takes 1.* bytes when stored"):
        registry.register("orders", "protobuf", b'syntax = "proto3"; message M {} ' + comment)


def test_a_subject_has_a_limit_of_versions(registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    assert VERSIONS_MAX == 1_000
    monkeypatch.setattr("frazil.registry.registry.VERSIONS_MAX", 2)
    for count in (1, 2):
        registry.register("orders", "json", schema(**{f"f{number}": "string" for number in range(count)}))
    with pytest.raises(frazil.InvalidInput, match="has 2 versions; delete those"):
        registry.register("orders", "json", schema(x="string"))


def test_another_registry_on_the_store_sees_everything(registry: SchemaRegistry, store: SqliteStore) -> None:
    registry.register("orders", "protobuf", b'syntax = "proto3"; message M { string a = 1; }')
    other = SchemaRegistry(store, FakeClock())
    assert other.latest("orders").definition.tagged_json() == registry.latest("orders").definition.tagged_json()
    assert other.validator(1, 1)(b"\x0a\x01x") is None


class Meddler:
    """A store in which another is quicker, once, just before a subject is changed."""

    def __init__(self, store: MetaStore) -> None:
        self._store = store
        self.before_put: list[SchemaRegistry] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def put_if(self, key: str, value: bytes, revision: int) -> int | None:
        if key.startswith("/schemas/subjects/") and self.before_put:
            self.before_put.pop().register("orders", "json", SECOND)
        return self._store.put_if(key, value, revision)


@pytest.mark.parametrize("there", [True, False])
def test_who_is_late_looks_again_and_leaves_nothing_behind(store: SqliteStore, there: bool) -> None:
    quick = SchemaRegistry(store, FakeClock())
    if there:
        quick.register("orders", "json", FIRST)
    meddler = Meddler(store)
    late = SchemaRegistry(meddler, FakeClock())  # type: ignore[arg-type]
    meddler.before_put.append(quick)
    done = late.register("orders", "json", schema(a="string", b="string", c="string"))
    assert (done.version, done.is_new_version) == (3 if there else 2, True)
    assert [each.version for each in late.versions("orders")] == list(range(1, done.version + 1))
    assert len(store.list("/schemas/versions/")) == done.version
    assert [entry.value for entry in store.list("/schemas/ids/")] == [b"orders"]
    assert late.get(done.schema_id).info.version == done.version


def _register_all(path: Path, worker: int, start: object, results: object) -> None:
    store = SqliteStore(path)
    registry = SchemaRegistry(store, FakeClock())
    registry_start: threading.Barrier = start  # type: ignore[assignment]
    registry_start.wait()
    made = []
    for number in range(6):
        names = {f"f{index}": "string" for index in range(number + 1)}
        for subject in ("shared", f"own{worker}"):
            done = registry.register(subject, "json", schema(**names))
            made.append((subject, number, done.schema_id, done.version, done.is_new_version))
    results.put(made)  # type: ignore[attr-defined]
    store.close()


def test_processes_register_at_once_and_agree(tmp_path: Path) -> None:
    workers = 3
    path = tmp_path / "meta.db"
    SqliteStore(path).close()
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(workers), context.Queue()
    processes = [
        context.Process(target=_register_all, args=(path, number, start, results)) for number in range(workers)
    ]
    for process in processes:
        process.start()
    made = [row for _ in processes for row in results.get(timeout=60)]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    ids = {subject: {row[2] for row in made if row[0] == subject} for subject, *_ in made}
    assert all(len(each) == 1 for each in ids.values())
    assert len(set.union(*ids.values())) == workers + 1
    for number in range(6):
        shared = [row for row in made if row[0] == "shared" and row[1] == number]
        assert len({row[3] for row in shared}) == 1
        assert sum(row[4] for row in shared) == 1
    store = SqliteStore(path)
    registry = SchemaRegistry(store, FakeClock())
    assert registry.subjects() == ["own0", "own1", "own2", "shared"]
    for subject in registry.subjects():
        assert [each.version for each in registry.versions(subject)] == list(range(1, 7))
        assert registry.get(registry.schema_id(subject)).subject == subject
    assert len(store.list("/schemas/versions/")) == 6 * (workers + 1)
    assert len(store.list("/schemas/ids/")) == workers + 1
    store.close()


def test_threads_register_at_once_and_agree(registry: SchemaRegistry) -> None:
    versions: list[int] = []

    def work(worker: int) -> None:
        versions.append(registry.register("orders", "json", schema(**{f"f{worker}": "string"})).version)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(versions) == list(range(1, 9))
