"""Lines of the audit log that are counted instead of written: a flood hides nothing else, and is not hidden."""

from __future__ import annotations

import contextvars
import json
import queue
from pathlib import Path
from typing import Any

from frazil.core.principal import ANONYMOUS, LOCAL, Principal
from frazil.core.settings.security import AuditSettings
from frazil.node.access.audit import Audit
from frazil.node.access.audit_log.limits import (
    ALLOWED_MAX,
    OTHERS,
    REFUSALS_MAX,
    ROUTINE_INTERVAL_US,
    SUMMARY_INTERVAL_US,
    TRACKED_MAX,
    LineLimits,
)
from frazil.node.request_ids import begin
from frazil.testing.clock import FakeClock

ALICE, MALLORY = Principal("key:alice"), Principal("key:mallory")
SECOND_US = 1_000_000


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "audit.log").read_text().splitlines()]


def refuse(audit: Audit, who: Principal, action: str = "read", resource: str = "topic /shop/orders") -> None:
    audit.record(who, action, resource, False, "10.0.0.1:5", "no role allows it, or one denies it")


def opened(folder: Path, clock: FakeClock, **settings: Any) -> Audit:
    audit = Audit(AuditSettings(**settings), folder, clock)
    audit.start()
    return audit


def test_a_flood_of_refusals_is_counted_and_pushes_nothing_out(tmp_path: Path) -> None:
    for who in (ANONYMOUS, MALLORY):
        clock, folder = FakeClock(), tmp_path / who.name.replace(":", "-")
        audit = opened(folder, clock, bytes_max=64 * 1024, files_max=1)
        audit.record(ALICE, "delete", "topic /shop/orders", True)
        for _ in range(3):
            for _ in range(5_000):
                refuse(audit, who)
            clock.advance(SECOND_US)
        audit.record(ALICE, "delete", "topic /shop/tea", True)
        audit.close()
        found = lines(folder)
        deleted = [one["resource"] for one in found if one.get("action") == "delete"]
        assert deleted == ["topic /shop/orders", "topic /shop/tea"]
        written = sum(one.get("allowed") is False for one in found)
        assert written == REFUSALS_MAX + 2, "one more each second"
        told = [one for one in found if "refused" in one]
        assert sum(one["refused"] for one in told) == 15_000 - written
        assert {(one["principal"], one["action"]) for one in told} == {(who.name, "read")}
        assert audit.lost == 0


def test_a_flood_of_allowed_calls_is_counted_and_pushes_nothing_out(tmp_path: Path) -> None:
    """Whoever may alter something may ask for it as often as it likes, by any name within its rights."""
    clock = FakeClock()
    limits = LineLimits(clock)

    def allowed(who: Principal, action: str, number: int = 0) -> bool:
        return limits.takes(who, action, f"subscription /shop/orders/{number}", True, "10.0.0.1:5", "PUT /v1/x")

    assert sum(allowed(MALLORY, "alter", number) for number in range(2 * ALLOWED_MAX)) == ALLOWED_MAX
    assert allowed(MALLORY, "delete"), "another action"
    assert allowed(ALICE, "alter"), "another caller"
    assert all(allowed(MALLORY, "grant") for _ in range(2 * ALLOWED_MAX)), "grants are never left out"
    clock.advance(SUMMARY_INTERVAL_US)
    assert limits.summaries() == [{"principal": MALLORY.name, "action": "alter", "allowed_more": ALLOWED_MAX}]
    assert [allowed(MALLORY, "alter") for _ in range(61)] == [True] * 60 + [False], "one more each second"


def test_a_flood_hides_neither_other_callers_nor_other_actions(tmp_path: Path) -> None:
    audit = opened(tmp_path, FakeClock())
    for _ in range(1_000):
        refuse(audit, MALLORY)
    refuse(audit, MALLORY, "grant", "server /")
    refuse(audit, ALICE)
    audit.close()
    found = [(one["principal"], one["action"]) for one in lines(tmp_path) if one.get("allowed") is False]
    assert found[REFUSALS_MAX:] == [("key:mallory", "grant"), ("key:alice", "read")]


def test_the_count_is_written_while_the_log_is_open(tmp_path: Path) -> None:
    clock, told = FakeClock(), queue.Queue[dict[str, Any]]()

    def sink(written: list[bytes]) -> None:
        for line in written:
            told.put(json.loads(line))

    audit = Audit(AuditSettings(), tmp_path, clock, sink=sink)
    audit.start()
    for _ in range(100):
        refuse(audit, MALLORY)
    assert [told.get(timeout=10)["allowed"] for _ in range(REFUSALS_MAX)] == [False] * REFUSALS_MAX
    clock.advance(SUMMARY_INTERVAL_US)
    assert told.get(timeout=10)["refused"] == 100 - REFUSALS_MAX
    audit.close()


def test_many_callers_at_once_share_one_count() -> None:
    clock = FakeClock()
    limits = LineLimits(clock)
    taken = sum(
        limits.takes(Principal(f"jwt:{number}"), "read", "topic /a/b", False, "", "")
        for number in range(3 * TRACKED_MAX)
    )
    assert taken == TRACKED_MAX + REFUSALS_MAX
    [told] = limits.summaries(is_final=True)
    assert (told["principal"], told["refused"]) == (OTHERS, 2 * TRACKED_MAX - REFUSALS_MAX)
    clock.advance(2 * REFUSALS_MAX * SECOND_US)
    assert all(limits.takes(Principal("jwt:new"), "read", "topic /a/b", False, "", "") for _ in range(REFUSALS_MAX))


def call(audit: Audit, name: str, who: Principal = LOCAL, peer: str = "ipv4:127.0.0.1:4000", **given: Any) -> None:
    def inside() -> None:
        begin([]).call = name
        audit.record(who, given.get("action", "operate"), "server /", given.get("allowed", True), peer)

    contextvars.copy_context().run(inside)


def test_the_routine_calls_of_a_mover_are_summed_up(tmp_path: Path) -> None:
    clock = FakeClock()
    audit = opened(tmp_path, clock)
    for port in range(3_600):
        for name in ("DoAction lead", "DoAction tell"):
            call(audit, name, peer=f"ipv4:127.0.0.1:{port}")
        clock.advance(SECOND_US)
    audit.close()
    found = lines(tmp_path)
    written = [one["call"] for one in found if "repeated" not in one]
    assert written == ["DoAction lead", "DoAction tell"]
    for name in written:
        told = [one for one in found if one["call"] == name and "repeated" in one]
        assert sum(one["repeated"] for one in told) == 3_599
        assert all((one["principal"], one["from"]) == ("local", "ipv4:127.0.0.1") for one in told)
    assert len(found) <= 2 + 2 * 3_600 * SECOND_US // ROUTINE_INTERVAL_US


def test_the_principal_of_the_mover_hides_nothing_else(tmp_path: Path) -> None:
    """Neither another call, nor a refusal, nor one from another host or by another caller."""
    audit = opened(tmp_path, FakeClock())
    for _ in range(100):
        call(audit, "DoAction lead")
    call(audit, "POST /v1/maintenance")
    call(audit, "DoAction delete_topic", action="delete")
    call(audit, "DoAction lead", allowed=False)
    call(audit, "DoAction lead", peer="ipv4:10.0.0.9:4000")
    call(audit, "DoAction lead", who=MALLORY)
    audit.close()
    found = [one for one in lines(tmp_path) if "repeated" not in one]
    assert [(one["principal"], one["call"], one["allowed"], one["from"]) for one in found[1:]] == [
        ("local", "POST /v1/maintenance", True, "ipv4:127.0.0.1:4000"),
        ("local", "DoAction delete_topic", True, "ipv4:127.0.0.1:4000"),
        ("local", "DoAction lead", False, "ipv4:127.0.0.1:4000"),
        ("local", "DoAction lead", True, "ipv4:10.0.0.9:4000"),
        ("key:mallory", "DoAction lead", True, "ipv4:127.0.0.1:4000"),
    ]
