"""Ten thousand wrong keys at once, and how long a wrong key takes to be refused."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections import Counter
from pathlib import Path

from frazil.core.errors import TryLater, Unauthenticated
from frazil.node.access.audit_log.limits import REFUSALS_MAX
from frazil.node.access.gate import Credentials
from frazil.node.access.keys import new_key
from parts.secured import SecuredDoors, secured

COUNT = 10_000
SECONDS_MAX = 20.0
"""Far more than they take, about one second, and far less than so many hashes: 250 s."""
LETTERS = "abcdefghijklmnop"
SAMPLES = 21


def wrong(key: str, number: int) -> str:
    return key[:-8] + "".join(LETTERS[int(one, 16)] for one in f"{number:08x}")


def test_ten_thousand_wrong_keys_are_refused_and_the_right_one_passes(tmp_path: Path) -> None:
    async def refused(doors: SecuredDoors, key: str) -> type[Exception]:
        try:
            await doors.node.gate.identify(Credentials(f"Bearer {key}", peer="10.0.0.1:5"))
        except (Unauthenticated, TryLater) as error:
            return type(error)
        raise AssertionError("it was let in")

    async def work(doors: SecuredDoors) -> None:
        known, right = await doors.key(("reader", "*")), await doors.key(("reader", "*"))
        given = Credentials(f"Bearer {right}")
        await doors.node.gate.identify(given)  # it was verified once
        unknown = [f"frz_{'a' * 4}{number:08d}".replace("0", "z").replace("1", "y") for number in range(COUNT // 2)]
        keys = [wrong(known, number) for number in range(COUNT // 2)] + unknown
        began = time.monotonic()
        asked = [asyncio.ensure_future(refused(doors, key)) for key in keys]
        longest = 0.0
        while not all(one.done() for one in asked):
            start = time.monotonic()
            assert doors.node.gate.known(given) is not None
            await asyncio.sleep(0)
            longest = max(longest, time.monotonic() - start)
        took = time.monotonic() - began
        kinds = Counter(one.result() for one in asked)
        assert kinds[Unauthenticated] >= COUNT // 2, kinds
        assert took < SECONDS_MAX
        print(f"{COUNT} wrong keys in {took:.2f} s; a turn of the loop took {longest:.2f} s at most")

    async def all_of_it() -> None:
        async with secured(tmp_path / "data") as doors:
            await asyncio.wait_for(work(doors), 100)

    asyncio.run(all_of_it())
    lines = [json.loads(line) for line in (tmp_path / "data" / "audit.log").read_text().splitlines()]
    written = [one for one in lines if one.get("allowed") is False]
    assert REFUSALS_MAX <= len(written) <= REFUSALS_MAX + SECONDS_MAX
    assert sum(one.get("refused", 0) for one in lines) + len(written) >= COUNT // 2


def test_the_time_of_a_refusal_does_not_tell_how_much_of_the_key_was_right() -> None:
    record, key = new_key("tests", "", 0, None)
    secret = key.rpartition("_")[2]
    tried = {
        count: secret[:count] + "".join("a" if one != "a" else "b" for one in secret[count:]) for count in (0, 26, 51)
    }
    taken: dict[int, list[float]] = {count: [] for count in tried}
    for _ in range(SAMPLES):
        for count, one in tried.items():
            began = time.thread_time()  # of this thread alone: a busy machine takes other time from it
            assert record.matching(one, 0) is None
            taken[count].append(time.thread_time() - began)
    medians = {count: statistics.median(values) for count, values in taken.items()}
    print({count: f"{median * 1_000:.2f} ms" for count, median in medians.items()})
    assert max(medians.values()) < 1.2 * min(medians.values()), medians
    assert record.matching(secret, 0) == record.secrets[0]
