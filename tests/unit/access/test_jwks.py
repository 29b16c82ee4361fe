"""Keys of issuers: what a key set may hold, and files and addresses that change, break or are away."""

from __future__ import annotations

import contextlib
import http.server
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from frazil.core.errors import InvalidSettings
from frazil.core.settings.security import JwtSettings
from frazil.node.access.jwks import FETCH_INTERVAL_MIN_S, FETCH_INTERVAL_S, BadKeys, Keys, KeySource, read_keys
from frazil.node.access.jwt import fetching as fetching_module
from frazil.testing.clock import FakeClock
from parts.issuers import AUDIENCE, ISSUER, ec_key, jwks, public, public_jwk, rsa_key, shared

RSA, EC = rsa_key(), ec_key()
SECOND_US = 1_000_000


class Issuer(http.server.ThreadingHTTPServer):
    """An address with keys. `answer` is a status, headers and a body."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer: tuple[int, dict[str, str], bytes] = (200, {}, jwks(public_jwk(RSA, "r1")))
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/keys"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Issuer

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        status, headers, body = self.server.answer
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    server = Issuer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def fetching(url: str, clock: FakeClock) -> KeySource:
    settings = JwtSettings(issuer=ISSUER, audience=AUDIENCE, algorithms=("RS256", "ES256"), jwks_url=url)
    return KeySource(settings, clock)


# --- key sets


def test_only_public_keys_for_our_signatures_are_taken() -> None:
    others = [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "oct"},
        public_jwk(rsa_key(1024), "short"),
        public_jwk(ec_key(ec.SECP384R1()), "p384"),
        public_jwk(RSA, "enc", use="enc"),
        public_jwk(RSA, "512", alg="RS512"),
        public_jwk(RSA, "ops", key_ops=["encrypt"]),
        {"kty": "RSA", "n": "AQAB", "e": "!", "kid": "broken"},
        {"kty": "RSA", "n": "A" * 100_000, "e": "AQAB", "kid": "huge"},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "kid": "off the curve"},
        {"kty": "RSA", "n": 7, "e": 7},
        7,
    ]
    with pytest.raises(BadKeys, match="2048"):
        read_keys(json.dumps({"keys": others}).encode())
    found = read_keys(json.dumps({"keys": [*others, public_jwk(RSA, "r"), public_jwk(EC, None, use="sig")]}).encode())
    assert [(key.kid, key.algorithm) for key in found] == [("r", "RS256"), (None, "ES256")]


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"keys":{}}', b'{"keys":[]}', b"\xff", b"[" * 100_000])
def test_what_is_no_key_set_is_refused(data: bytes) -> None:
    with pytest.raises(BadKeys):
        read_keys(data)


def test_two_keys_of_one_name_and_too_many_keys_are_refused() -> None:
    with pytest.raises(BadKeys, match="same kid"):
        read_keys(jwks(public_jwk(RSA, "a"), public_jwk(rsa_key(), "a")))
    with pytest.raises(BadKeys, match="100"):
        read_keys(jwks(*[public_jwk(EC, str(number)) for number in range(101)]))


def test_a_key_is_not_shown() -> None:
    found = read_keys(jwks(public_jwk(RSA, "r")))
    assert public_jwk(RSA, "r")["n"] not in repr(found)
    assert "object at" not in repr(found)


def test_a_key_with_a_name_is_not_taken_for_another_name() -> None:
    keys = Keys(read_keys(jwks(public_jwk(RSA, "r"), public_jwk(EC, None))))
    assert keys.find("r", "RS256") is not None
    assert keys.find(None, "RS256") is not None
    assert keys.find("x", "RS256") is None
    assert keys.find("x", "ES256") is None
    assert keys.find("r", "HS256") is None


# --- files


def test_a_file_is_read_again_when_it_changes_and_a_broken_one_keeps_the_keys(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "jwks.json"
    source = KeySource(public(path, jwks(public_jwk(RSA, "old"))), FakeClock())
    for broken in (b"{", b'{"keys":{}}', None):
        path.unlink() if broken is None else path.write_bytes(broken)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                source.poll()
        assert len(caplog.records) == 1, broken
        assert "the last ones stay" in caplog.text
        assert source.keys.find("old", "RS256") is not None
    path.write_bytes(jwks(public_jwk(EC, "new")))
    source.poll()
    assert source.keys.find("old", "RS256") is None
    assert source.keys.find("new", "ES256") is not None


@pytest.mark.parametrize("rest", [[], [{**public_jwk(RSA, "old"), "use": "enc"}]])
def test_a_key_set_from_which_all_keys_were_taken_ends_their_trust(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, rest: list[dict[str, Any]]
) -> None:
    path = tmp_path / "jwks.json"
    source = KeySource(public(path, jwks(public_jwk(RSA, "old"))), FakeClock())
    (trusted,) = read_keys(jwks(public_jwk(RSA, "old")))
    path.write_bytes(jwks(*rest))
    with caplog.at_level(logging.WARNING):
        source.poll()
    assert source.keys.find("old", "RS256") is None
    assert not source.keys.holds(trusted.thumbprint), "what was verified before ends too"
    assert "its tokens are refused" in caplog.text
    path.write_bytes(b"{")
    source.poll()
    assert len(source.keys) == 0
    path.write_bytes(jwks(public_jwk(RSA, "old")))
    source.poll()
    assert (source.problem, len(source.keys)) == ("", 1)


def test_an_address_that_withdraws_all_keys_is_asked_again_soon(issuer: Issuer) -> None:
    clock = FakeClock()
    source = fetching(issuer.url, clock)
    source.poll()
    keys, issuer.answer = issuer.answer, (200, {}, jwks())
    clock.advance(FETCH_INTERVAL_S * SECOND_US)
    source.poll()
    assert len(source.keys) == 0
    issuer.answer = keys
    clock.advance(FETCH_INTERVAL_MIN_S * SECOND_US)
    source.poll()
    assert source.keys.find("r1", "RS256") is not None


def test_the_thread_notices_a_changed_file(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    source = KeySource(public(path, jwks(public_jwk(RSA, "old"))), FakeClock())
    source.start()
    try:
        path.write_bytes(jwks(public_jwk(EC, "new")))
        ended = threading.Event()
        for _ in range(100):
            if source.keys.find("new", "ES256") is not None:
                break
            ended.wait(0.05)
        assert source.keys.find("new", "ES256") is not None
    finally:
        source.close()


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 5_000])
def test_a_secret_of_the_wrong_size_is_refused_without_showing_it(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InvalidSettings, match=r"secret_file: a shared secret must have 32 to 4096 bytes") as refused:
        KeySource(shared(tmp_path, content.decode()), FakeClock())
    assert not content or content.decode() not in str(refused.value)


def test_a_missing_file_is_refused_by_its_setting(tmp_path: Path) -> None:
    settings = JwtSettings(issuer=ISSUER, audience=AUDIENCE, algorithms=("RS256",), jwks_file=tmp_path / "none")
    with pytest.raises(InvalidSettings, match=r"jwks_file: No such file"):
        KeySource(settings, FakeClock())


# --- addresses


def test_unknown_keys_cause_no_flood_of_fetches(issuer: Issuer) -> None:
    clock = FakeClock()
    source = fetching(issuer.url, clock)
    source.poll()
    assert source.keys.find("r1", "RS256") is not None
    for _ in range(100):
        source.want()
        source.poll()
    assert len(issuer.asked) == 1
    clock.advance(FETCH_INTERVAL_MIN_S * SECOND_US)
    for _ in range(100):
        source.want()
        source.poll()
    assert len(issuer.asked) == 2
    clock.advance(FETCH_INTERVAL_MIN_S * SECOND_US)
    source.poll()  # the wish of the round before
    clock.advance((FETCH_INTERVAL_S - 1) * SECOND_US)
    source.poll()
    assert len(issuer.asked) == 3
    clock.advance(SECOND_US)
    source.poll()
    assert len(issuer.asked) == 4


def test_the_last_keys_stay_while_the_address_is_away(issuer: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    source = fetching(issuer.url, clock)
    source.poll()
    elsewhere = {"location": f"http://localhost:{issuer.server_port}/keys"}
    for answer, why in (
        ((500, {}, b""), "status 500"),
        ((200, {}, b"<html>"), "no JSON"),
        ((200, {}, b" " * 300_000), "more than 262144 bytes"),
        ((302, elsewhere, b""), "another host"),
        ((302, {"location": "file:///etc/passwd"}, b""), "status 302"),
        ((302, {"location": "/keys"}, b""), "status 302"),
        ((200, {"content-length": "100000"}, b"x"), "no JSON"),
    ):
        issuer.answer = answer
        clock.advance(FETCH_INTERVAL_S * SECOND_US)
        source.poll()
        assert why in source.problem
        assert source.keys.find("r1", "RS256") is not None
    issuer.answer = (200, {}, jwks(public_jwk(EC, "e1")))
    clock.advance(FETCH_INTERVAL_MIN_S * SECOND_US)
    source.poll()
    assert source.problem == ""
    assert source.keys.find("r1", "RS256") is None


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_an_address_that_sends_a_byte_at_a_time_is_given_up(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(fetching_module, "TOTAL_SECONDS", 0.5)
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            client, _ = listener.accept()
            with client, contextlib.suppress(OSError):
                client.sendall(sent)
                while not ended.wait(0.05):
                    client.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        clock = FakeClock()
        source = fetching(f"http://127.0.0.1:{listener.getsockname()[1]}/keys", clock)
        began = time.monotonic()
        source.poll()
        took = time.monotonic() - began
        ended.set()
        thread.join()
    assert source.problem == "it took longer than 0.5 seconds"
    assert took < 5


def test_a_redirect_on_the_same_host_is_followed(issuer: Issuer) -> None:
    class Once(dict[str, str]):
        def items(self) -> Any:
            issuer.answer = (200, {}, jwks(public_jwk(EC, "e1")))
            return {"location": "/elsewhere"}.items()

    issuer.answer = (302, Once(), b"")
    source = fetching(issuer.url, FakeClock())
    source.poll()
    assert issuer.asked == ["/keys", "/elsewhere"]
    assert len(source.keys) == 1


def test_a_start_does_not_need_the_address(caplog: pytest.LogCaptureFixture) -> None:
    source = fetching("http://127.0.0.1:9/keys?key=planted", FakeClock())
    with caplog.at_level(logging.WARNING):
        source.poll()
        source.poll()
    assert len(source.keys) == 0
    assert len(caplog.records) == 1
    assert "its tokens are refused" in caplog.text
    assert "planted" not in caplog.text


@pytest.mark.parametrize("host", ["127.0.0.1.evil.example", "127.0.0.1@evil.example", "[::1]@evil.example", ""])
def test_keys_come_from_other_hosts_only_by_https(host: str) -> None:
    with pytest.raises(ValueError, match="jwks_url"):
        JwtSettings(issuer=ISSUER, audience=AUDIENCE, algorithms=("RS256",), jwks_url=f"http://{host}/keys")
