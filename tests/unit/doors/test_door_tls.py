"""The certificate of a door: checked when it is loaded, replaced when its files change, never by a broken one."""

from __future__ import annotations

import logging
import shutil
import ssl
from pathlib import Path
from typing import Any

import pytest

import frazil
from frazil.core.settings import Settings, make_settings
from frazil.core.settings.exposure import check_binds, exposed_doors
from frazil.core.settings.security import TlsSettings
from frazil.doors.tls import DoorTls, tls_of
from frazil.testing import FakeClock
from parts.certificates import Certificates, certificates


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return certificates(tmp_path / "made")


def loaded(made: Certificates, clock: FakeClock | None = None, **changed: Any) -> DoorTls:
    return DoorTls(TlsSettings.model_validate({**made.tls(), **changed}), "flight.tls", clock or FakeClock())


def test_a_door_has_its_own_certificate_or_that_of_all(made: Certificates) -> None:
    settings = make_settings({"security": {"tls": made.tls()}, "http": {"tls": {}}})
    assert tls_of(settings, settings.flight).is_on
    assert not tls_of(settings, settings.http).is_on, "an empty section of its own: no TLS there"


def test_the_floor_is_tls_1_2(made: Certificates) -> None:
    assert loaded(made).context().minimum_version is ssl.TLSVersion.TLSv1_2


def test_an_error_names_the_setting_and_the_file(made: Certificates, tmp_path: Path) -> None:
    text, other = tmp_path / "text", certificates(tmp_path / "other")
    text.write_text("no certificate")
    half = tmp_path / "half.pem"
    half.write_bytes((made.folder / "server.pem").read_bytes()[:200])
    for setting, path, why in (
        ("certificate", tmp_path / "none", "cannot be read: No such file"),
        ("certificate", text, "is not a PEM file"),
        ("certificate", half, "is not a PEM certificate"),
        ("key", half, "is not a PEM private key"),
        ("key", other.folder / "server-key.pem", "is not the key of the certificate"),
        ("client_ca", tmp_path / "none", "cannot be read"),
    ):
        with pytest.raises(frazil.InvalidSettings) as raised:
            loaded(made, **{setting: path})
        assert raised.value.message.startswith(f"flight.tls.{setting}: {path} "), raised.value.message
        assert why in raised.value.message


def test_new_files_are_used_within_a_second(made: Certificates, tmp_path: Path) -> None:
    clock, other = FakeClock(), certificates(tmp_path / "other")
    door = loaded(made, clock)
    before = door.current()
    made.replace_by(other)
    assert door.current() is before, "not looked at again yet"
    clock.advance(1_000_000)
    assert door.current().certificate == (other.folder / "server.pem").read_bytes()
    assert door.context() is not before.context
    clock.advance(1_000_000)
    assert door.current() is door.current()


def test_a_broken_file_keeps_the_old_certificate_with_one_warning(
    made: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, other = FakeClock(), certificates(tmp_path / "other")
    door = loaded(made, clock)
    before = door.current()
    shutil.copy(other.folder / "server.pem", made.folder / "server.pem")  # its key is still to come
    with caplog.at_level(logging.WARNING, "frazil.serve"):
        for _ in range(3):
            clock.advance(1_000_000)
            assert door.current() is before
    assert len([one for one in caplog.messages if "the old one stays in use" in one]) == 1
    shutil.copy(other.folder / "server-key.pem", made.folder / "server-key.pem")
    clock.advance(1_000_000)
    assert door.current().key == (other.folder / "server-key.pem").read_bytes()


def test_comments_of_a_client_ca_have_any_bytes(made: Certificates) -> None:
    pem = made.ca.read_bytes()
    made.ca.write_bytes("# Főtanúsítvány\n".encode() + pem + b"\xff\n")
    assert len(loaded(made, client_certificates="required").context().get_ca_certs()) == 1


@pytest.mark.parametrize("inside", [b"", b"\xff\xfe\n", b"\0\n", b"AAAA\n", b"AA"])
def test_a_broken_client_ca_keeps_the_old_one(
    made: Certificates, inside: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    door = loaded(made, clock, client_certificates="required")
    before = door.current()
    made.ca.write_bytes(b"-----BEGIN CERTIFICATE-----\n" + inside + b"-----END CERTIFICATE-----\n")
    clock.advance(1_000_000)
    with caplog.at_level(logging.WARNING, "frazil.serve"):
        assert door.current() is before
    assert f"flight.tls.client_ca: {made.ca} has no PEM certificates" in caplog.text


def test_optional_client_certificates_are_refused_where_grpc_listens(made: Certificates) -> None:
    door = loaded(made, client_certificates="optional")
    assert door.context().verify_mode is ssl.CERT_OPTIONAL
    with pytest.raises(frazil.InvalidSettings, match="`optional` is for the HTTP door alone"):
        door.grpc_credentials()


def test_a_client_ca_is_not_trusted_where_no_certificate_is_asked_for(made: Certificates) -> None:
    assert loaded(made).context().get_ca_certs() == []


@pytest.mark.parametrize("door", ["http", "flight", "broker"])
def test_a_bind_beyond_loopback_needs_security_and_tls(made: Certificates, door: str) -> None:
    def settings(**security: Any) -> Settings:
        return make_settings({door: {"host": "0.0.0.0"}, "security": security})

    with pytest.raises(frazil.InvalidSettings, match=f"{door}.host: 0.0.0.0 is not a loopback.*security is off"):
        check_binds(settings())
    with pytest.raises(frazil.InvalidSettings, match=f"{door}.host.*it has no TLS"):
        check_binds(settings(enabled=True))
    check_binds(settings(enabled=True, tls=made.tls()))
    check_binds(settings(insecure=True))
    assert exposed_doors(settings(enabled=True, tls=made.tls())) == []
    assert len(exposed_doors(settings(insecure=True))) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_nothing(host: str) -> None:
    check_binds(make_settings({"http": {"host": host}, "flight": {"host": host}, "broker": {"host": host}}))
