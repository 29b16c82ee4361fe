"""Decodes many damaged requests and compares; run as a process of its own, for native code can end a process.

Takes a seed and a number of batches.
"""

from __future__ import annotations

import random
import sys

from otlp_comparison import assert_same_as_reference
from otlp_random import damaged, oddly_written, random_request

from frazil.telemetry.signals import Signal

BATCH = 40


def damaged_batch(signal: Signal, rng: random.Random) -> list[bytes]:
    request = random_request(signal, rng)
    raw = oddly_written(request, rng) if rng.random() < 0.5 else request.SerializeToString()
    return [raw, *(damaged(raw, rng) for _ in range(BATCH))]


def main(seed: int, batches: int) -> None:
    for number in range(seed, seed + batches):
        rng = random.Random(number)
        signal = rng.choice(list(Signal))
        try:
            assert_same_as_reference(signal, damaged_batch(signal, rng))
        except BaseException:
            print(f"seed {number}, {signal}", file=sys.stderr)
            raise
    print(f"{batches} batches")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
