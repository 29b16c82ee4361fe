"""Small file systems, which tests fill up."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

MIB = 1024 * 1024


def run(*command: str) -> bool:
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.fixture(params=["ext4", "tmpfs"])
def small_file_system(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB: ext4 on a loop device, which has a journal, or tmpfs."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    place = tmp_path / "small"
    place.mkdir()
    if request.param == "ext4":
        image = tmp_path / "image"
        with open(image, "wb") as file:
            file.truncate(24 * MIB)
        if not shutil.which("mkfs.ext4") or not run("mkfs.ext4", "-q", "-m", "0", str(image)):
            pytest.skip("mkfs.ext4 is not there")
        mounted = run("mount", "-o", "loop", str(image), str(place))
    else:
        mounted = run("mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place))
    if not mounted:
        pytest.skip(f"{request.param} cannot be mounted here")
    try:
        yield place
    finally:
        assert run("umount", str(place))
