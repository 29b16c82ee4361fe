"""What a real `frazil serve` has on `/metrics`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from parts.movers import make_place, served


@contextmanager
def watched(folder: Path, **sections: Any) -> Iterator[str]:
    """The address of the admin door of a server without a mover."""
    place = make_place(folder / "data", folder / "lake", **sections)
    with served(place, folder / "server.log") as doors:
        yield doors["http"]


def families(address: str) -> list[Metric]:
    return list(text_string_to_metric_families(httpx.get(f"{address}/metrics", timeout=30).text))


def samples(address: str) -> dict[tuple[str, ...], float]:
    """By name and the values of the labels, these in the order of their names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families(address)
        for sample in family.samples
    }


def wire_names(found: list[Metric]) -> list[str]:
    """As an expression names them."""
    return [f"{one.name}_total" if one.type == "counter" else one.name for one in found]


def series_names(found: list[Metric]) -> set[str]:
    """Every name that an expression may use: a histogram has three."""
    names = set(wire_names(found))
    for one in found:
        if one.type == "histogram":
            names |= {f"{one.name}_bucket", f"{one.name}_count", f"{one.name}_sum"}
    return names
