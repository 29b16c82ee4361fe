"""Groups of tests: those that share an expensive part run on one worker of `--dist loadgroup`, which starts it once."""

from __future__ import annotations

from pathlib import Path

import pytest
from _pytest.nodeid import coerce_node_id

SLOW_FOLDERS = frozenset({"compat", "contract", "crash", "integration"})
GROUPS = (
    ("spark-connect", frozenset({"spark_address", "connect"})),
    ("spark", frozenset({"session"})),
    ("spark-cluster", frozenset({"spark_hosts"})),
    ("rest", frozenset({"rest_catalog"})),
)
"""By the fixtures that tests ask for, directly or not, the most expensive first; `session` is a JVM of the worker."""
LONGEST = (
    "test_pipeline_cli",
    "test_broker_etcd_restored",
    "test_cli_served",
    "test_client_cluster",
    "test_mover_kill",
    "test_object_acks_kill",
    "test_upload_kill",
    "test_cluster_failover",
    "test_cluster_rounds",
    "test_telemetry_asked",
    "test_cluster_doors",
    "test_failing_store",
    "test_ownership",
    "test_telemetry_cluster",
    "test_meta_etcd",
    "test_wrong_answers",
)
"""Modules that would keep one worker busy after the others have ended."""


def group_of(item: pytest.Item) -> str | None:
    """Where a test belongs: with those that share a part of its, or else, if it is slow, with those of its module."""
    asked = {*getattr(item, "fixturenames", ())}
    if "lake_settings" in asked and "rest" in getattr(getattr(item, "callspec", None), "params", {}).values():
        asked.add("rest_catalog")
    for name, fixtures in GROUPS:
        if asked & fixtures:
            return name
    folder = item.path.relative_to(Path(__file__).resolve().parents[1]).parts[0]
    return item.path.stem if folder in SLOW_FOLDERS else None


def turn_of(item: pytest.Item) -> int:
    """Quick tests come first, then the groups of expensive parts and the longest modules, then the other slow ones."""
    order = [None, *(name for name, _ in GROUPS), *LONGEST]
    group = group_of(item)
    return order.index(group) if group in order else len(order)


def name_group(item: pytest.Item) -> None:
    """Put the group into the test's id, where `--dist loadgroup` looks for it.

    xdist 3.8 does so for its mark, but by a field that pytest 9.2 no longer reads.
    """
    group = group_of(item)
    if group is not None and not item.nodeid.endswith(f"@{group}"):
        item._id = coerce_node_id(f"{item.nodeid}@{group}")  # type: ignore[attr-defined]
