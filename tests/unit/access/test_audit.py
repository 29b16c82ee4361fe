"""The audit log: one line for each decision, none of them forged, and none lost silently."""

from __future__ import annotations

import contextvars
import json
import logging
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from frazil.core.principal import Principal
from frazil.core.settings.security import AuditSettings
from frazil.node.access.audit import Audit
from frazil.node.request_ids import begin
from frazil.testing.clock import FakeClock

ALICE = Principal("key:alice")


@contextmanager
def auditing(folder: Path, **given: Any) -> Iterator[Audit]:
    others = {name: given.pop(name) for name in ("sink", "queue_max") if name in given}
    audit = Audit(AuditSettings(**given), folder, FakeClock(), **others)
    audit.start()
    try:
        yield audit
    finally:
        audit.close()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_says_who_did_what_to_what_from_where(tmp_path: Path) -> None:
    def call() -> None:
        begin([("x-request-id", "r-77")]).call = "CreateProducer"
        audit.record(ALICE, "create", "topic /shop/orders", True, "ipv4:10.0.0.7:5000")
        audit.record(ALICE, "delete", "topic /shop/orders", False, "", "no role allows it")

    with auditing(tmp_path) as audit:
        contextvars.copy_context().run(call)
    assert lines(tmp_path / "audit.log") == [
        {
            "time": "2023-11-14T22:13:20.000000Z",
            "request_id": "r-77",
            "principal": "key:alice",
            "call": "CreateProducer",
            "action": "create",
            "resource": "topic /shop/orders",
            "allowed": True,
            "from": "ipv4:10.0.0.7:5000",
            "reason": "",
        },
        {
            "time": "2023-11-14T22:13:20.000000Z",
            "request_id": "r-77",
            "principal": "key:alice",
            "call": "CreateProducer",
            "action": "delete",
            "resource": "topic /shop/orders",
            "allowed": False,
            "from": "",
            "reason": "no role allows it",
        },
    ]
    assert stat.S_IMODE((tmp_path / "audit.log").stat().st_mode) == 0o600


def test_a_name_cannot_forge_a_line(tmp_path: Path) -> None:
    forged = 'x"}\n{"principal":"root","allowed":true}\r\x00\u2028\x85\ud800'
    with auditing(tmp_path) as audit:
        audit.record(Principal(forged), "create", forged, False, forged, forged)
    data = (tmp_path / "audit.log").read_bytes()
    assert data.count(b"\n") == 1
    assert data.isascii()
    [line] = lines(tmp_path / "audit.log")
    assert line["principal"] == line["resource"] == line["from"] == forged
    assert line["allowed"] is False


def test_long_values_are_cut(tmp_path: Path) -> None:
    with auditing(tmp_path) as audit:
        audit.record(Principal("n" * 10_000), "create", "r" * 10_000, False, "p" * 10_000, "w" * 10_000)
    [line] = lines(tmp_path / "audit.log")
    assert [len(line[name]) for name in ("principal", "resource", "from", "reason")] == [300] * 4
    assert line["resource"].endswith("r...")


def test_allowed_reads_are_recorded_only_if_wanted_and_refused_ones_always(tmp_path: Path) -> None:
    with auditing(tmp_path / "few") as few, auditing(tmp_path / "all", reads=True) as every:
        for audit in (few, every):
            for allowed in (True, False):
                for action in ("read", "produce", "consume", "describe", "grant"):
                    audit.record(ALICE, action, "topic /a/b", allowed)
    found = [(line["action"], line["allowed"]) for line in lines(tmp_path / "few" / "audit.log")]
    assert found == [
        ("grant", True),
        ("read", False),
        ("produce", False),
        ("consume", False),
        ("describe", False),
        ("grant", False),
    ]
    assert len(lines(tmp_path / "all" / "audit.log")) == 10


def test_nothing_is_written_while_it_is_off(tmp_path: Path) -> None:
    with auditing(tmp_path, enabled=False) as audit:
        audit.record(ALICE, "create", "topic /a/b", False)
    assert list(tmp_path.iterdir()) == []
    assert audit.records == audit.lost == 0


def test_a_full_queue_never_blocks_and_says_how_many_records_it_lost(tmp_path: Path) -> None:
    held, entered = threading.Event(), threading.Event()

    def slow(_: list[bytes]) -> None:
        entered.set()
        held.wait(10)

    with auditing(tmp_path, queue_max=5, sink=slow) as audit:
        audit.record(ALICE, "create", "first", True)
        assert entered.wait(10)
        for number in range(20):
            audit.record(ALICE, "create", str(number), True)
        assert (audit.records, audit.lost) == (6, 15)
        held.set()
    found = lines(tmp_path / "audit.log")
    assert [line.get("resource", line.get("lost")) for line in found] == ["first", 15, "0", "1", "2", "3", "4"]


def test_files_are_rotated_by_size_and_the_oldest_removed(tmp_path: Path) -> None:
    path = tmp_path / "own" / "security.log"
    with auditing(tmp_path, path=path, bytes_max=64 * 1024, files_max=2) as audit:
        for number in range(2_000):
            audit.record(ALICE, "create", f"topic /a/{number}", True)
    names = sorted(one.name for one in path.parent.iterdir())
    assert names == ["security.log", "security.log.1", "security.log.2"]
    for name in names:
        assert (path.parent / name).stat().st_size <= 64 * 1024
        assert stat.S_IMODE((path.parent / name).stat().st_mode) == 0o600
    kept = [line["resource"] for name in reversed(names) for line in lines(path.parent / name)]
    assert kept == [f"topic /a/{number}" for number in range(2_000 - len(kept), 2_000)]
    assert audit.lost == 0


def test_a_torn_line_of_a_crash_does_not_swallow_the_next(tmp_path: Path) -> None:
    (tmp_path / "audit.log").write_text('{"time":"2023')
    with auditing(tmp_path) as audit:
        audit.record(ALICE, "create", "x", True)
    torn, whole = (tmp_path / "audit.log").read_text().splitlines()
    assert torn == '{"time":"2023'
    assert json.loads(whole)["resource"] == "x"


def test_a_file_that_was_moved_away_is_begun_again(tmp_path: Path) -> None:
    written = threading.Semaphore(0)
    with auditing(tmp_path, sink=lambda _: written.release()) as audit:
        audit.record(ALICE, "create", "before", True)
        assert written.acquire(timeout=10)
        (tmp_path / "audit.log").rename(tmp_path / "moved")
        audit.record(ALICE, "create", "after", True)
    assert [line["resource"] for line in lines(tmp_path / "moved")] == ["before"]
    assert [line["resource"] for line in lines(tmp_path / "audit.log")] == ["after"]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("")
    (tmp_path / "audit.log").symlink_to(tmp_path / "victim")
    with auditing(tmp_path) as audit:
        audit.record(ALICE, "create", "x", True)
    assert (tmp_path / "victim").read_text() == ""
    assert audit.lost == 1


def test_a_disk_that_refuses_is_logged_once_counted_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written = threading.Semaphore(0)
    path = tmp_path / "audit.log"
    path.mkdir()
    with caplog.at_level(logging.WARNING), auditing(tmp_path, sink=lambda _: written.release()) as audit:
        for number in range(5):
            audit.record(ALICE, "create", str(number), True)
            assert written.acquire(timeout=10)
        assert audit.lost == 5
        os.rmdir(path)
        audit.record(ALICE, "create", "after", True)
    assert [line.get("resource", line.get("lost")) for line in lines(path)] == [5, "after"]
    found = [record.levelname for record in caplog.records if record.name == "frazil.audit"]
    assert found == ["ERROR", "WARNING"]


def test_a_record_after_the_end_is_counted_as_lost(tmp_path: Path) -> None:
    with auditing(tmp_path) as audit:
        pass
    audit.record(ALICE, "create", "x", True)
    assert audit.lost == 1


def test_a_sink_that_fails_does_not_stop_the_file(tmp_path: Path) -> None:
    def fails(_: list[bytes]) -> None:
        raise RuntimeError("no topic")

    with auditing(tmp_path, sink=fails) as audit:
        for number in range(3):
            audit.record(ALICE, "create", str(number), True)
    assert len(lines(tmp_path / "audit.log")) == 3
