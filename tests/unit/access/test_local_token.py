"""The local token: who can read the folder is this process's own."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from frazil.node.access.local_token import TOKEN_FILE, LocalToken, read_local_token


def test_the_token_is_for_its_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        LocalToken(tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / TOKEN_FILE).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [TOKEN_FILE]


def test_only_the_token_of_this_run_is_local(tmp_path: Path) -> None:
    first = LocalToken(tmp_path)
    stale = read_local_token(tmp_path)
    second = LocalToken(tmp_path)
    current = read_local_token(tmp_path)
    assert stale is not None
    assert current is not None
    assert second.is_this(current)
    assert not second.is_this(stale)
    for wrong in ("", "frl_", current[:-1], current + "0", "frl_é", current.upper()):
        assert not second.is_this(wrong)
    first.remove()
    assert read_local_token(tmp_path) == current, "a server removes its own token alone"
    second.remove()
    assert read_local_token(tmp_path) is None
    second.remove()


def test_a_link_in_place_of_the_token_is_replaced_and_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("kept")
    (tmp_path / TOKEN_FILE).symlink_to(target)
    assert read_local_token(tmp_path) is None
    LocalToken(tmp_path)
    assert target.read_text() == "kept"
    assert not (tmp_path / TOKEN_FILE).is_symlink()


@pytest.mark.parametrize("content", [b"", b"something else", b"\xff\xfe", b"frl_a\nb"])
def test_a_file_that_is_no_token_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / TOKEN_FILE).write_bytes(content)
    assert read_local_token(tmp_path) is None


def test_a_pipe_in_place_of_the_token_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / TOKEN_FILE)
    assert read_local_token(tmp_path) is None
