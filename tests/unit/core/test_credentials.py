"""Credentials of a client: no secret is shown, and a token's file is read again."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import frazil
from frazil.core.addresses import is_loopback
from frazil.core.credentials import ClientCredentials, TokenReader, credentials_of
from frazil.core.settings import make_settings

SECRET = "frk_very-secret"


def test_no_secret_is_shown() -> None:
    given = ClientCredentials(token=SECRET, key=SECRET.encode())
    assert repr(given) == "ClientCredentials(token, key)"
    assert pickle.loads(pickle.dumps(given)) == given, "it goes to tasks"


def test_a_changed_file_is_read_again_and_a_lost_one_is_not_missed(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    reader = TokenReader(ClientCredentials(token_file=file))
    assert reader.read() == "first"
    file.write_text("the second\n".replace(" ", "-"))
    assert reader.read() == "the-second"
    file.unlink()
    assert reader.read() == "the-second"
    assert ClientCredentials(token="old", token_file=file).for_tasks().token == "old"


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no certificate")
    for name, path in (("ca", tmp_path / "text"), ("ca", tmp_path / "none"), ("token_file", tmp_path / "none")):
        with pytest.raises(frazil.InvalidSettings, match=f"{name}: {path}"):
            credentials_of(make_settings({"client": {name: path}}).client)


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "ü", "x" * 20_000])
def test_a_token_that_is_no_header_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(frazil.InvalidInput, match="token: a token has 1 to") as raised:
        frazil.connect("grpc://127.0.0.1:1", token=token)
    assert not token or token not in raised.value.message


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "LOCALHOST.", "[::1]", "::ffff:127.0.0.1"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", [None, "", "0.0.0.0", "::", "10.0.0.1", "127.0.0.1.example", "localhost.example"])
def test_not_loopback(host: str | None) -> None:
    assert not is_loopback(host)


def test_short_variables_override_the_file(tmp_path: Path) -> None:
    environment = {"FRAZIL_TOKEN": "from-environment", "FRAZIL_CA": str(tmp_path / "ca")}
    client = make_settings({"client": {"token_file": "file"}}, "settings", environment).client
    assert client.token is not None
    assert client.token.get_secret_value() == "from-environment"
    assert client.token_file is None
    assert client.ca == tmp_path / "ca"
