"""Durations in nanoseconds, for people."""

from __future__ import annotations

_STEPS = ((1_000, "ns"), (1_000, "µs"), (1_000, "ms"), (60, "s"), (60, "min"))


def duration_shown(duration_ns: int) -> str:
    """Return three digits and a unit: `1.25 ms`, `3.00 s`."""
    value, sign = float(abs(duration_ns)), "-" if duration_ns < 0 else ""
    for step, unit in _STEPS:
        if value < step:
            digits = 0 if unit == "ns" or value >= 100 else 1 if value >= 10 else 2
            return f"{sign}{value:.{digits}f} {unit}"
        value /= step
    return f"{sign}{value:.1f} h"
