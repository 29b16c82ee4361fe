"""What the opened parts of security leave in the data folder."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

from frazil.core.clock import SystemClock
from frazil.core.settings import make_settings
from frazil.node.access.opening import access_open


def test_only_the_owner_reads_files_with_secrets(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o750)
    settings = make_settings({"data": data, "security": {"enabled": True}})

    async def modes() -> dict[str, int]:
        async with access_open(settings, SystemClock()):
            return {path.name: stat.S_IMODE(path.stat().st_mode) for path in data.iterdir()}

    found = asyncio.run(modes())
    assert {"~meta.db", "~token"} <= set(found)
    assert set(found.values()) == {0o600}
