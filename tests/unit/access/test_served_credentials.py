"""Whom a client of the data folder trusts: the server's own certificate alone, however its file is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from frazil.core.settings import Settings
from frazil.node.access.served import credentials_at
from parts.certificates import Certificates, certificates

ADDRESS = "https://127.0.0.1:1"


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return certificates(tmp_path / "made")


def trusted(file: Path, address: str = ADDRESS) -> tuple[bytes | None, str | None]:
    served = {"http": address, "http_certificate": {"file": str(file), "name": "localhost"}}
    found = credentials_at(Settings(), served, address, "http")
    return found.ca, found.pinned_name


def test_the_first_certificate_of_a_chain_is_trusted_alone(made: Certificates, tmp_path: Path) -> None:
    own, key, ca = ((made.folder / name).read_bytes() for name in ("server.pem", "server-key.pem", "ca.pem"))
    file = tmp_path / "chain.pem"
    for content in (own + ca, (own + ca).replace(b"\n", b"\r\n"), key + own + ca):
        file.write_bytes(content)
        found, name = trusted(file)
        assert found is not None
        assert found.replace(b"\r\n", b"\n") == own, "the authority of others is not trusted, and the key not kept"
        assert name == "localhost"


def test_a_file_without_a_certificate_pins_nothing(made: Certificates) -> None:
    """Without its name checked, the certificate must be pinned; else any that the system trusts would do."""
    assert trusted(made.folder / "server-key.pem") == (None, None)


def test_another_host_is_not_pinned(made: Certificates) -> None:
    assert trusted(made.folder / "server.pem", "https://frazil.example:1") == (None, None)
