"""What all tests share: quick tests run before those with real processes; hypothesis has a profile for long runs."""

from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, settings

from parts.groups import name_group, turn_of
from parts.jvm import spark_options, use_with_spark

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", settings.get_profile("default"), max_examples=2_000)
settings.load_profile("default")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it puts into the background so. Children would inherit it and miss the Ctrl-C of a test.
    signal.signal(signal.SIGINT, signal.default_int_handler)

use_with_spark(spark_options())

pytest_plugins = ("parts.fixtures",)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Stable, so that within each turn the order stays random (or as asked for)."""
    items.sort(key=turn_of)
    if getattr(config.option, "loadgroup", False):  # a worker of `--dist loadgroup`
        for item in items:
            name_group(item)
