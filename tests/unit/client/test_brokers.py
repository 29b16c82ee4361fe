"""Which addresses a client calls, and with what."""

from __future__ import annotations

from typing import Any

import pytest

from frazil.client import brokers
from frazil.client.brokers import Brokers, addresses_of
from frazil.core.credentials import NO_CREDENTIALS, ClientCredentials
from frazil.core.errors import InvalidInput

A, B, C = "grpc+tls://a:1", "grpc+tls://b:2", "grpc+tls://c:3"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> dict[str, ClientCredentials]:
    """The addresses that were connected to, with the credentials."""
    found: dict[str, ClientCredentials] = {}

    def open_client(address: str, credentials: ClientCredentials) -> Any:
        found[address] = credentials
        return object()

    monkeypatch.setattr(brokers, "open_client", open_client)
    return found


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("grpc://a:1", ["grpc://a:1"]),
        ("grpc://a:1,b:2", ["grpc://a:1", "grpc://b:2"]),
        ("grpc+tls://a:1, b:2", ["grpc+tls://a:1", "grpc+tls://b:2"]),
        (["grpc://a:1", "grpc://[::1]:2"], ["grpc://a:1", "grpc://[::1]:2"]),
        (("grpc+tls://a:1", "grpcs://b:2"), ["grpc+tls://a:1", "grpcs://b:2"]),
    ],
)
def test_addresses_are_a_list_or_have_commas_between(given: Any, found: list[str]) -> None:
    assert addresses_of(given) == found


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([], "1 to 32"),
        (["grpc://a:1"] * 33, "1 to 32"),
        ("grpc://a:1,grpc://a:1", "given twice"),
        ("grpc://a:1,a:1", "given twice"),
        ("grpc://a:1,grpc+tls://b:1", "TLS"),
        ("grpc://a:1,", "no address"),
        ("grpc://a:1,b", "no address"),
        ("grpc://a:1,b:0", "no address"),
        ("grpc://a:1,b:99999", "no address"),
        ("a:1,b:2", "no address"),
        ("http://a:1,b:2", "no address"),
        ("grpc://a:1,grpc://me@b:2", "no address"),
        ("grpc://a:1,grpc://b:2/path", "no address"),
        (["grpc://a:1", 7], "text"),
    ],
)
def test_nonsense_is_refused(given: Any, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem) as refused:
        addresses_of(given)
    assert refused.value.fields["field"] == "address"


def test_a_topic_is_asked_for_at_its_owner_and_after_its_loss_at_the_next(opened: dict[str, Any]) -> None:
    known = Brokers([A], NO_CREDENTIALS)
    known.announced([("a", A), ("b", B), ("c", C)])
    assert known.of("t").address == A
    known.led("t", "b", B)
    assert (known.of("t").address, known.of("u").address, known.of().address) == (B, A, A)
    known.lost(B)
    assert known.of("t").address == A
    known.lost(A)
    assert known.of("t").address == B
    known.lost(B)
    assert known.of("t").address == C
    known.lost(C)
    assert known.of().address == A
    assert list(opened) == [A, B, C]


@pytest.mark.usefixtures("opened")
def test_a_broker_that_does_not_know_who_serves_a_topic_is_left_for_the_next_after_a_while() -> None:
    known = Brokers([A], NO_CREDENTIALS)
    for _ in range(2 * brokers.DOUBTS_MAX):
        known.doubted("t", A)
    assert known.of("t").address == A, "there is no other one"
    known.announced([("a", A), ("b", B)])
    for _ in range(brokers.DOUBTS_MAX):
        assert known.of("t").address == A
        known.doubted("t", A)
    assert (known.of("t").address, known.of("u").address) == (B, A)
    known.led("t", "a", A)
    assert known.of("t").address == A


def test_credentials_go_to_no_broker_without_tls(opened: dict[str, Any]) -> None:
    known = Brokers([A], ClientCredentials(token="secret"))
    for address in ("grpc://b:2", "grpc+tcp://b:2", "http://b:2", "b:2", "grpc+tls://b", "grpc+tls://b:2/x"):
        with pytest.raises(InvalidInput, match=r"is no address|without TLS"):
            known.led("t", "b", address)
        known.announced([("b", address)])
    known.lost(A)
    assert known.of("t").address == A
    assert list(opened) == [A]


def test_the_token_of_a_server_of_this_host_goes_to_no_other_broker(opened: dict[str, Any]) -> None:
    named = ClientCredentials(token="named")
    known = Brokers([A], ClientCredentials(token="local", pinned_name="a", others=named))
    known.led("t", "b", B)
    known.of("t")
    assert opened[A].token == "local"
    assert opened[B] is named


def test_the_same_credentials_go_to_every_broker_of_a_named_cluster(opened: dict[str, Any]) -> None:
    given = ClientCredentials(token="named")
    known = Brokers([A, B], given)
    known.led("t", "c", C)
    known.of("t")
    assert set(opened) == {A, B, C}
    assert all(one is given for one in opened.values())
