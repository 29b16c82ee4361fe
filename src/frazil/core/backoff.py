"""Exponential back-off: the delay before the next retry.

All retries use this formula. The caller sets the limits, and the delay has the unit of its arguments.
"""

from __future__ import annotations

import random
from typing import TypeVar

DOUBLINGS_MAX = 32
"""Limits the exponent: above every used limit, and without overflow after a year of failures."""

Amount = TypeVar("Amount", int, float)


def backoff(failures: int, *, first: Amount, limit: Amount) -> Amount:
    """Return the delay after consecutive failures: `first` after one, doubled by each further one, at most `limit`."""
    assert failures >= 1, failures
    doubled: Amount = first * (1 << min(failures - 1, DOUBLINGS_MAX))
    return min(limit, doubled)


def jittered(delay_seconds: float) -> float:
    """Return a random delay between half and all of it, so that clients of one server do not retry at the same time."""
    return delay_seconds * random.uniform(0.5, 1.0)  # noqa: S311 - nobody gains by guessing it
