"""Which brokers a verb calls after a redirect, and with what."""

from __future__ import annotations

import json
from typing import Any

import pytest

from frazil.cli.target.server import OWNERS_MAX, Server
from frazil.core.credentials import ClientCredentials
from frazil.core.errors import InvalidInput, NotOwner

TOPIC = "/default/orders"


def elsewhere(address: str | None, broker: str = "b") -> tuple[int, bytes]:
    addresses = {} if address is None else {"http": address}
    return 307, json.dumps(NotOwner(TOPIC, broker, addresses, retry_after_ms=1).as_dict()).encode()


class Answers:
    """What servers answer, by address; and the calls that they got, with the token."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **answers: tuple[int, bytes]) -> None:
        self.answers: dict[str, tuple[int, bytes]] = answers
        self.calls: list[tuple[str, str | None]] = []

        def call(server: Server, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
            assert (method, path, body) == ("GET", "/v1/x", None)
            self.calls.append((server.address, server._authorization().get("Authorization")))
            return self.answers[server.address]

        monkeypatch.setattr(Server, "_call", call)


def test_a_redirect_is_followed_with_the_same_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(monkeypatch, **{"https://a:1": elsewhere("https://b:2"), "https://b:2": (200, b'{"x": 1}')})
    asked = Server("https://a:1", credentials=ClientCredentials(token="secret"))
    assert asked.get("/v1/x") == {"x": 1}
    assert answers.calls == [("https://a:1", "Bearer secret"), ("https://b:2", "Bearer secret")]


def test_no_broker_without_tls_is_called_for_one_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(monkeypatch, **{"https://a:1": elsewhere("http://127.0.0.1:2")})
    with pytest.raises(InvalidInput, match="without TLS"):
        Server("https://a:1", credentials=ClientCredentials(token="secret")).get("/v1/x")
    assert [address for address, _ in answers.calls] == ["https://a:1"]


def test_a_token_found_in_a_folder_goes_to_no_other_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"http://127.0.0.1:1": elsewhere("http://127.0.0.1:2"), "http://127.0.0.1:2": (200, b"{}")}
    answers = Answers(monkeypatch, **found)
    given = ClientCredentials(token="local", others=ClientCredentials(token="named"))
    Server("http://127.0.0.1:1", credentials=given).get("/v1/x")
    assert [token for _, token in answers.calls] == ["Bearer local", "Bearer named"]


def test_brokers_that_name_each_other_are_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        "http://127.0.0.1:1": elsewhere("http://127.0.0.1:2"),
        "http://127.0.0.1:2": elsewhere("http://127.0.0.1:1"),
    }
    answers = Answers(monkeypatch, **found)
    with pytest.raises(NotOwner):
        Server("http://127.0.0.1:1").get("/v1/x")
    assert len(answers.calls) == OWNERS_MAX + 1


def test_an_owner_without_an_address_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    Answers(monkeypatch, **{"http://127.0.0.1:1": elsewhere(None)})
    with pytest.raises(NotOwner, match="owned by the broker b"):
        Server("http://127.0.0.1:1").get("/v1/x")
