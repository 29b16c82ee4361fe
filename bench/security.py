"""Security beside none: durable publishes over TLS with an API key, and the cost of a check of rights: `make bench`.

The two servers take turns, so that noise meets both. Loads are bounded in time. Nothing here is a test.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import frazil
from client import MESSAGE, published, timed
from frazil.core.access import Action, topic
from frazil.core.clock import SystemClock
from frazil.meta.sqlite import SqliteStore
from frazil.node.access.directory import AccessDirectory
from frazil.node.access.gate import Credentials
from frazil.node.access.grants import BindingAdmin, KeyAdmin
from frazil.node.access.guard import SecureGate
from frazil.node.access.key_verifier import KeyVerifier
from frazil.node.access.keys import new_key
from measure import Figure, folder, percentile, report, us

THREADS, ROUNDS, CHECKS = 4, 5, 200_000
ANY_PORT = {"http": {"port": 0}, "flight": {"port": 0}, "broker": {"enabled": False}, "pipeline": {"enabled": False}}


def frazil_cli(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "frazil", *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@contextlib.contextmanager
def served(where: Path, *, secured: bool) -> Iterator[frazil.RemoteStorage]:
    """A client of a server of its own: with TLS and a key, or with neither."""
    where.mkdir()
    settings = {"data": str(where / "data"), **ANY_PORT}
    given: dict[str, str] = {}
    if secured:
        frazil_cli("certs", "dev", "--out", str(where / "certs"))
        tls = {"certificate": str(where / "certs" / "server.pem"), "key": str(where / "certs" / "server-key.pem")}
        settings["security"] = {"enabled": True, "tls": tls}
        key = frazil_cli("keys", "create", "bench", "--role", "admin", "--data", str(where / "data"))
        given = {"token": key, "ca": str(where / "certs" / "ca.pem")}
    (where / "frazil.yaml").write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-m", "frazil", "serve", "--json", "--config", str(where / "frazil.yaml")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            address = json.loads(server.stdout.readline())["flight"]
            with frazil.connect(address, **given) as remote:
                yield remote
        finally:
            server.terminate()


def publishing(plain: frazil.RemoteStorage, secured: frazil.RemoteStorage) -> list[Figure]:
    topics = [remote.topic("/bench/many") for remote in (plain, secured)]
    for one in topics:
        published(one, THREADS, None)
    rates = [[published(one, THREADS, None)[0] for one in topics] for _ in range(ROUNDS)]
    without, with_key = (statistics.median(rate[at] for rate in rates) for at in (0, 1))
    singles = [remote.topic("/bench/one") for remote in (plain, secured)]
    taken: list[list[float]] = [[], []]
    for one in singles:
        for _ in range(200):
            one.publish(MESSAGE)
    for _ in range(10):
        for at, one in enumerate(singles):
            taken[at] += [timed(lambda one=one: one.publish(MESSAGE)) for _ in range(100)]  # type: ignore[misc]
    p50 = [percentile(times, 0.5) for times in taken]
    share = with_key / without
    return [
        Figure(
            "batches of 512 x 1 KiB over TLS with a key, beside neither",
            f"{with_key:,.0f}/s", f"{without:,.0f}/s", share, "≥ 0.8", share >= 0.8,
        ),
        Figure(
            "one message at a time, p50", us(p50[1]), us(p50[0]), p50[1] / p50[0], "≤ 1.2", p50[1] <= 1.2 * p50[0]
        ),
    ]  # fmt: skip


def checks(where: Path) -> list[Figure]:
    """A check of rights, and the whole way of a known key, in one thread."""
    store, clock = SqliteStore(where / "meta.db"), SystemClock()
    directory = AccessDirectory(store)
    try:
        record, key = KeyAdmin(directory, clock).create("bench")
        BindingAdmin(directory).add(f"key:{record.id}", "producer", "/bench/*")
        verifier = KeyVerifier(directory, clock)
        gate = SecureGate(directory, [verifier], clock)
        given = Credentials(f"Bearer {key}")
        who = asyncio.run(gate.identify(given))
        resource = topic("/bench/one")

        def each(run: object) -> float:
            assert callable(run)
            started = time.perf_counter()
            for _ in range(CHECKS):
                run()
            return (time.perf_counter() - started) / CHECKS

        check = min(each(lambda: gate.check(who, Action.PRODUCE, resource)) for _ in range(3))
        known = min(each(lambda: gate.known(given)) for _ in range(3))
        verifier.close()
    finally:
        directory.close()
        store.close()
    limit = 5e-6
    return [
        Figure("a check of rights", f"{check * 1e6:.1f} µs", "5 µs", check / limit, "≤ 1", check <= limit),
        Figure("to identify a key that was verified", f"{known * 1e6:.1f} µs", "-", 1.0, "-", True),
    ]


def wrong_keys() -> list[Figure]:
    """The time to refuse a secret of which all but the last character is right, beside one with nothing right."""
    record, key = new_key("bench", "", 0, None)
    secret = key.rpartition("_")[2]
    nearly, nothing = secret[:-1] + ("b" if secret[-1] == "a" else "a"), "".join(reversed(secret))
    taken: dict[str, list[float]] = {nearly: [], nothing: []}
    for _ in range(30):
        for wrong, times in taken.items():
            times.append(timed(lambda wrong=wrong: record.matching(wrong, 0)))  # type: ignore[misc]
    one, other = (percentile(times, 0.5) for times in taken.values())
    ratio = one / other
    return [Figure("a nearly right key beside a wrong one", us(one), us(other), ratio, "≈ 1", abs(ratio - 1) < 0.05)]


def main() -> None:
    with folder() as where:
        with served(where / "plain", secured=False) as plain, served(where / "secured", secured=True) as secured:
            figures = publishing(plain, secured)
        figures += [*checks(where), *wrong_keys()]
    report("Frazil with security on, beside off", figures)


if __name__ == "__main__":
    main()
