"""One process owns a folder; where file locks do not show that, the folder is refused."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

import frazil
from frazil.core.disk import lock as file_lock
from frazil.core.disk.lock import local_lock_option

WITHOUT_LOCKS = """
import fcntl, sys
fcntl.flock = lambda fd, how: None
import frazil
try:
    storage = frazil.open(sys.argv[1])
except frazil.LocksNotSupported as error:
    print(error)
else:
    storage.topic("/default/orders").publish(b"from another process")
"""


def test_where_every_lock_is_granted_the_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda _fd, _how: None)
    with pytest.raises(frazil.LocksNotSupported, match="file locks do nothing on its file system") as told:
        frazil.open(tmp_path)
    assert str(tmp_path) in told.value.message


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_where_locks_are_not_known_the_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(_fd: int, _how: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(frazil.LocksNotSupported):
        frazil.open(tmp_path)


def test_a_second_process_without_locks_writes_nothing_to_the_folder_of_the_first(tmp_path: Path) -> None:
    """As on a file system that grants every lock: whoever comes second is refused before it writes."""
    with frazil.open(tmp_path) as storage:
        topic = storage.topic("/default/orders")
        topic.publish(b"one")
        command = [sys.executable, "-c", WITHOUT_LOCKS, str(tmp_path)]
        told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert "file locks do nothing" in told.stdout
        topic.publish(b"two")
    with frazil.open(tmp_path) as storage:
        assert [row.payload for row in storage.topic("/default/orders").read(end=2)] == [b"one", b"two"]


def test_a_folder_that_was_refused_for_its_locks_is_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", lambda _fd, _how: None)
        for _ in range(3):
            with pytest.raises(frazil.LocksNotSupported):
                frazil.open(tmp_path)
        links = [Path(os.path.realpath(f"/proc/self/fd/{fd}")) for fd in os.listdir("/proc/self/fd")]
        assert not [link for link in links if link.is_relative_to(tmp_path)], "no descriptor is left open"
    frazil.open(tmp_path).close()


MOUNTS = """\
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
30 22 0:40 / /data rw,relatime shared:1 - nfs4 far:/data rw,vers=4.2,local_lock=none,addr=10.0.0.1
31 22 0:41 / /old rw,relatime shared:2 - nfs far:/old rw,vers=3,nolock,local_lock=all
32 31 0:42 / /old/new\\040one rw - nfs4 far:/new rw,vers=4.2,local_lock=flock
33 22 0:43 / /big rw - lustre far:/big rw,localflock
34 33 8:2 / /big/own rw - xfs /dev/sdb rw
35 22 0:44 / /gone rw - nfs far:/gone rw,local_lock=flock
36 35 8:3 / /gone rw - ext4 /dev/sdc rw
"""


@pytest.mark.parametrize(
    ("folder", "option"),
    [
        ("/srv/data", None),
        ("/data/frazil", None),
        ("/database", None),
        ("/old", "nolock"),
        ("/old/frazil", "nolock"),
        ("/old/new one/frazil", "local_lock=flock"),
        ("/big/frazil", "localflock"),
        ("/big/own/frazil", None),
        ("/gone/frazil", None),
    ],
)
def test_mounts_whose_locks_other_hosts_do_not_see_are_known_by_their_options(folder: str, option: str | None) -> None:
    assert local_lock_option(MOUNTS, folder) == option


def test_a_folder_whose_locks_other_hosts_do_not_see_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"22 1 0:9 / {tmp_path}/shared rw - nfs4 far:/ rw,local_lock=flock\n", encoding="utf-8")
    monkeypatch.setattr(file_lock, "MOUNTS", mounts)
    with pytest.raises(frazil.LocksNotSupported, match="mounted with local_lock=flock") as told:
        frazil.open(tmp_path / "shared")
    assert told.value.fields["folder"] == str(tmp_path / "shared")
    frazil.open(tmp_path / "own").close()
