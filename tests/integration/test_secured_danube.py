"""Stock Danube clients of a secured server: TLS and mTLS, API keys, tokens of each algorithm, and `Authenticate`."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import jwt
import pytest
from danube.proto import DanubeApi_pb2 as pb
from danube.proto import DanubeApi_pb2_grpc as stubs

from frazil.doors.danube.proto import DanubeAuth_pb2 as auth_pb
from parts.danube import producer, subscriber
from parts.issuers import AUDIENCE, ec_key, public_jwk, rsa_key
from parts.processes import PARTS, part
from parts.secured_server import KEYS_ISSUER, SHARED_ISSUER, SecuredServer, now_s

pytestmark = [pytest.mark.timeout(180), pytest.mark.xdist_group("secured")]

HAS_RUST = (PARTS / "danube-rust").exists()
needs_rust = pytest.mark.skipif(not HAS_RUST, reason="the client could not be built here; `make parts` says why")

TOPIC = "/default/orders"
ROLES = ("producer", "consumer", "operator")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    found = SecuredServer(tmp_path_factory.mktemp("secured"))
    found.start()
    yield found
    found.kill()


@pytest.fixture(scope="module")
def key(server: SecuredServer) -> str:
    return server.key(*ROLES)


def token(server: SecuredServer, algorithm: str, **changed: Any) -> str:
    """A token of the issuer for this algorithm, right but for the changes."""
    issuer = SHARED_ISSUER if algorithm == "HS256" else KEYS_ISSUER
    claims = {"iss": issuer, "aud": AUDIENCE, "sub": f"robot-{algorithm}", "exp": now_s() + 600} | changed
    signing = {"HS256": (server.secret, None), "RS256": (server.rsa, "rsa"), "ES256": (server.ec, "ec")}
    key, kid = signing[algorithm]
    return jwt.encode(claims, key, algorithm, headers=None if kid is None else {"kid": kid})


async def send_and_receive(server: SecuredServer, token: str | None, topic: str) -> None:
    client = await server.client(token)
    sent = [f"message {number}" for number in range(5)]
    made = await producer(client, topic)
    async with subscriber(client, topic=topic) as received:
        for text in sent:
            await made.send(text.encode())
        assert await received.texts(len(sent)) == sent


async def refusal(server: SecuredServer, token: str | None) -> grpc.StatusCode:
    """The status that a stock stub gets for a call with this token."""
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    async with grpc.aio.secure_channel(server.url.split("://")[1], server.channel_credentials()) as channel:
        try:
            request = pb.TopicLookupRequest(request_id=1, topic=TOPIC)
            await stubs.DiscoveryStub(channel).TopicLookup(request, metadata=metadata, timeout=20)
        except grpc.aio.AioRpcError as error:
            shown = str(error)
            code: grpc.StatusCode = error.code()
        else:
            return grpc.StatusCode.OK
    assert not token or token == "x" or token not in shown
    return code


async def authenticate(server: SecuredServer, api_key: str) -> str:
    """As clients up to version 0.3 do."""
    async with grpc.aio.secure_channel(server.url.split("://")[1], server.channel_credentials()) as channel:
        call = channel.unary_unary(
            "/danube.AuthService/Authenticate",
            request_serializer=auth_pb.AuthRequest.SerializeToString,
            response_deserializer=auth_pb.AuthResponse.FromString,
        )
        answer = await call(auth_pb.AuthRequest(api_key=api_key), timeout=20)
        found: str = answer.token
        return found


def by_rust(server: SecuredServer, topic: str, **given: Path | str) -> list[str]:
    """Send three messages with the stock client in Rust, and return what a second one receives."""
    client, pipe = str(part("danube-rust")), subprocess.PIPE
    settings = os.environ | {f"DANUBE_{name.upper()}": str(value) for name, value in given.items()}
    command = [client, "send", server.url, topic, "p", "0"]
    subprocess.run([*command, "0"], env=settings, check=True, capture_output=True, timeout=60)  # creates the topic
    receive = [client, "receive", server.url, topic, "s", "exclusive", "c"]
    with subprocess.Popen(receive, env=settings, stdin=pipe, stdout=pipe, text=True) as receiving:
        assert receiving.stdin is not None
        assert receiving.stdout is not None
        assert receiving.stdout.readline() == "subscribed\n"
        subprocess.run([*command, "3"], env=settings, check=True, capture_output=True, timeout=60)
        received = [receiving.stdout.readline().split()[-1] for _ in range(3)]
        receiving.stdin.close()
    return received


@needs_rust
def test_the_client_in_rust_with_a_key_and_with_a_token(server: SecuredServer, key: str) -> None:
    ca, sent = server.files.ca, ["0", "1", "2"]
    assert by_rust(server, "/default/rust-key", ca=ca, token=key) == sent
    server.bind(f"jwt:{KEYS_ISSUER}/robot-ES256", *ROLES)
    assert by_rust(server, "/default/rust-token", ca=ca, token=token(server, "ES256")) == sent
    with pytest.raises(subprocess.CalledProcessError) as refused:
        by_rust(server, "/default/rust-key", ca=ca, token=key + "a")
    assert b"Unauthenticated" in refused.value.stderr


def test_an_api_key_is_a_token(server: SecuredServer, key: str) -> None:
    asyncio.run(send_and_receive(server, key, "/default/by-key"))


@pytest.mark.parametrize("algorithm", ["HS256", "RS256", "ES256"])
def test_a_token_of_each_algorithm(server: SecuredServer, algorithm: str) -> None:
    issuer = SHARED_ISSUER if algorithm == "HS256" else KEYS_ISSUER
    server.bind(f"jwt:{issuer}/robot-{algorithm}", *ROLES)
    asyncio.run(send_and_receive(server, token(server, algorithm), f"/default/by-{algorithm}"))


def test_a_key_is_exchanged_for_a_token_as_older_clients_do(server: SecuredServer, key: str) -> None:
    async def exchanged() -> None:
        found = await authenticate(server, key)
        assert key not in found
        await send_and_receive(server, found, "/default/by-exchange")

    asyncio.run(exchanged())


def test_a_wrong_key_is_not_exchanged(server: SecuredServer, key: str) -> None:
    wrong = key[:-1] + ("a" if key[-1] != "a" else "b")
    for given in (wrong, "", "x", token(server, "RS256")):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            asyncio.run(authenticate(server, given))
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert not given or given not in str(refused.value.details())


def test_a_revoked_key_ends_its_tokens(server: SecuredServer) -> None:
    key = server.key(*ROLES)
    found = asyncio.run(authenticate(server, key))
    asyncio.run(send_and_receive(server, found, "/default/revoked"))
    assert server.call("DELETE", f"/v1/keys/{key.split('_')[1]}").status_code == 200
    assert asyncio.run(refusal(server, found)) is grpc.StatusCode.UNAUTHENTICATED
    assert asyncio.run(refusal(server, key)) is grpc.StatusCode.UNAUTHENTICATED


def test_wrong_tokens_are_refused(server: SecuredServer, key: str) -> None:
    assert asyncio.run(refusal(server, key)) in (grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND)
    other = {"kid": "rsa"}
    claims = {"iss": KEYS_ISSUER, "aud": AUDIENCE, "sub": "robot-RS256", "exp": now_s() + 600}
    wrong = [
        None,
        "",
        "x",
        key + "a",
        token(server, "RS256", exp=now_s() - 60),
        token(server, "RS256", aud="another"),
        token(server, "RS256", iss="https://another.example"),
        token(server, "RS256", iss=SHARED_ISSUER),
        token(server, "HS256", iss=KEYS_ISSUER),
        jwt.encode(claims, rsa_key(), "RS256", headers=other),
        jwt.encode(claims, ec_key(), "ES256", headers={"kid": "ec"}),
        jwt.encode(claims, None, "none"),
        jwt.encode(claims, str(public_jwk(server.rsa, "rsa")["n"]), "HS256", headers=other),
    ]
    for number, one in enumerate(wrong):
        assert asyncio.run(refusal(server, one)) is grpc.StatusCode.UNAUTHENTICATED, number


@pytest.mark.parametrize("size", [9_000, 50_000, 1_000_000])
def test_a_huge_token_is_refused(server: SecuredServer, key: str, size: int) -> None:
    """By gRPC itself, which refuses large headers at random from 8 KiB on and always from 16 KiB on, or by the gate."""
    refused = asyncio.run(refusal(server, token(server, "RS256", pad="x" * size)))
    assert refused in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert asyncio.run(refusal(server, key)) in (grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND)


def test_a_token_without_rights_is_refused(server: SecuredServer) -> None:
    stranger = token(server, "ES256", sub="stranger")
    assert asyncio.run(refusal(server, stranger)) is grpc.StatusCode.PERMISSION_DENIED


def test_the_claim_of_an_internal_broker_gives_no_rights(server: SecuredServer) -> None:
    async def claim() -> grpc.StatusCode:
        async with grpc.aio.secure_channel(server.url.split("://")[1], server.channel_credentials()) as channel:
            request = pb.TopicLookupRequest(request_id=1, topic=TOPIC)
            metadata = (("x-danube-internal-broker", "broker-1"),)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stubs.DiscoveryStub(channel).TopicLookup(request, metadata=metadata, timeout=20)
            return refused.value.code()

    assert asyncio.run(claim()) is grpc.StatusCode.UNAUTHENTICATED


def test_a_client_certificate_is_a_caller(tmp_path: Path) -> None:
    server = SecuredServer(tmp_path, mtls=True)
    server.start()
    try:
        assert asyncio.run(refusal(server, None)) is grpc.StatusCode.PERMISSION_DENIED
        server.bind("cert:robot", *ROLES)
        asyncio.run(send_and_receive(server, None, "/default/by-certificate"))
        key = server.key(*ROLES)
        asyncio.run(send_and_receive(server, key, "/default/by-certificate-and-key"))
        assert asyncio.run(refusal(server, key + "a")) is grpc.StatusCode.UNAUTHENTICATED

        if HAS_RUST:
            files = server.files
            own = {"certificate": files.client_certificate, "key": files.client_key}
            assert by_rust(server, "/default/rust-certificate", ca=files.ca, **own) == ["0", "1", "2"]

        async def without_certificate() -> grpc.StatusCode:
            roots = grpc.ssl_channel_credentials(server.files.ca.read_bytes())
            async with grpc.aio.secure_channel(server.url.split("://")[1], roots) as channel:
                request = pb.TopicLookupRequest(request_id=1, topic=TOPIC)
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await stubs.DiscoveryStub(channel).TopicLookup(request, timeout=20)
                return refused.value.code()

        assert asyncio.run(without_certificate()) is grpc.StatusCode.UNAVAILABLE
    finally:
        server.kill()
