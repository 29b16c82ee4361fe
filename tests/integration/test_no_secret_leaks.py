"""Secrets are planted everywhere, right and wrong calls are made on every door, and nothing shows one of them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import grpc
import grpc.aio
import jwt
import psutil
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from frazil.doors.danube.proto import DanubeAuth_pb2 as auth_pb
from parts.danube import producer, subscriber
from parts.etcd import PASSWORD, Etcd, etcd_server, gateway, turn_on_users
from parts.issuers import AUDIENCE
from parts.movers import environment
from parts.processes import free_port
from parts.secured_server import SHARED_ISSUER, SecuredServer, now_s

pytestmark = pytest.mark.timeout(180)

TOPIC = "/default/orders"
PLANTED = {
    "s3 secret": "s3-secr3t-access-2c4d",
    "s3 session": "s3ssion-t0ken-aa10",
    "catalog password": "pg-passw0rd-7f3a",
    "etcd password": "etcd-passw0rd-e88f",
    "client token": "cl1ent-t0ken-for-others",
    "sse key": "sse-k3y-of-the-objects-51e0",
    "password of the issuer": "issuer-passw0rd-19fe",
    "signature of the address": "s1gnature-of-a-link-77b3",
    "header of traces": "traces-h3ader-d0c1",
}
AWAY = {
    "issuer": "https://away.example",
    "algorithms": ["RS256"],
    "jwks_url": f"http://robot:{PLANTED['password of the issuer']}@127.0.0.1:{free_port()}/jwks"
    f"?sig={PLANTED['signature of the address']}",
}
MEANT_TO_HOLD = {"~token"}
"""Files of the data folder that hold a secret by their purpose, with mode 0600."""


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with etcd_server(tmp_path / "etcd") as found:
        turn_on_users(found)
        told = gateway(found.endpoint, "/v3/auth/authenticate", {"name": "root", "password": PASSWORD})
        user: dict[str, object] = {"name": "frazil", "password": PLANTED["etcd password"]}
        gateway(found.endpoint, "/v3/auth/user/add", user, str(told["token"]))
        gateway(found.endpoint, "/v3/auth/user/grant", {"user": "frazil", "role": "root"}, str(told["token"]))
        yield found


@pytest.fixture
def server(tmp_path: Path, etcd: Etcd) -> Iterator[SecuredServer]:
    catalog = {
        "uri": f"postgresql+psycopg2://frazil:{PLANTED['catalog password']}@127.0.0.1:{free_port()}/lake",
    }
    store = {
        "type": "s3",
        "bucket": "lake",
        "endpoint": f"http://127.0.0.1:{free_port()}",
        "access_key_id": "AKIA",
        "secret_access_key": PLANTED["s3 secret"],
        "session_token": PLANTED["s3 session"],
        "properties": {"s3.sse.type": "kms", "s3.sse.key": PLANTED["sse key"]},
    }
    metadata = {
        "type": "etcd",
        "endpoints": [etcd.endpoint],
        "username": "frazil",
        "password": PLANTED["etcd password"],
    }
    others = {
        "catalog": catalog,
        "object_store": store,
        "objects": {"enabled": True, "timeout_ms": 1_000, "ack_timeout_ms": 2_000},
        "client": {"token": PLANTED["client token"]},
        "traces": {
            "endpoint": f"http://127.0.0.1:{free_port()}",
            "sample_ratio": 1,
            "headers": {"api-key": PLANTED["header of traces"]},
        },
        "telemetry": {"enabled": True},
    }
    found = SecuredServer(tmp_path / "server", metadata=metadata, others=others, issuers=[AWAY])
    found.start()
    yield found
    found.kill()


class Shown:
    """Everything that somebody could see, by where it was seen."""

    def __init__(self) -> None:
        self._texts: list[tuple[str, bytes]] = []

    def add(self, where: str, text: str | bytes) -> None:
        self._texts.append((where, text.encode("utf-8", "replace") if isinstance(text, str) else text))

    def leaks(self, secrets: dict[str, str]) -> list[tuple[str, str]]:
        forms = {name: _forms(secret) for name, secret in secrets.items()}
        return [
            (name, where)
            for where, text in self._texts
            for name, wanted in forms.items()
            if any(form in text for form in wanted)
        ]

    def __len__(self) -> int:
        return sum(len(text) for _, text in self._texts)


def _forms(secret: str) -> set[bytes]:
    """The secret as it is, quoted, as hexadecimal digits, and in base64 wherever in a longer text it begins."""
    data = secret.encode()
    shifted = {base64.b64encode(b"\0" * shift + data)[4 if shift else 0 : -4] for shift in range(3)}
    safe = {form.replace(b"+", b"-").replace(b"/", b"_") for form in shifted}
    return {data, quote(secret).encode(), data.hex().encode(), *shifted, *safe}


# --- calls, right and wrong


def http_calls(server: SecuredServer, tokens: list[str], shown: Shown) -> None:
    paths = ("/metrics", "/openapi.json", "/health/ready", "/v1/topics", "/v1/keys", "/v1/nowhere", "/")
    for token in tokens:
        for path in paths:
            answer = server.call("GET", path, token)
            shown.add(f"GET {path}", answer.text + str(answer.headers))
        for body in (b"{", b"\xff\xfe", b'{"owner":7}', json.dumps({"owner": token}).encode()):
            answer = server.call("POST", "/v1/bindings", token, content=body)
            shown.add("POST /v1/bindings", answer.text)


FLIGHT_CALLS: list[Callable[[Any, Any, str], Any]] = [
    lambda client, options, _: list(client.list_flights(options=options)),
    lambda client, options, _: list(client.do_action(("nothing", b"{"), options)),
    lambda client, options, token: client.do_get(fl.Ticket(token.encode()), options).read_all(),
    lambda client, options, token: client.authenticate_basic_token("user", token, options),
]


def flight_calls(server: SecuredServer, tokens: list[str], shown: Shown) -> None:
    roots = server.files.ca.read_text()
    for token in [*tokens, "", "\x7f"]:
        with fl.connect(server.flight.replace("grpc://", "grpc+tls://"), tls_root_certs=roots) as client:
            options = fl.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())], timeout=20)
            for call in FLIGHT_CALLS:
                try:
                    shown.add("Flight", str(call(client, options, token)))
                except Exception as error:  # noqa: BLE001 - whatever the client makes of it
                    shown.add("Flight", f"{error!r} {getattr(error, 'extra_info', '')}")


def refused_by_the_store(server: SecuredServer, key: str) -> str:
    """Publish to a topic that is acknowledged by the object store, which does not answer."""
    roots = server.files.ca.read_text()
    rows = pa.record_batch({"payload": pa.array([b"hello"], pa.binary())})
    options = fl.FlightCallOptions(headers=[(b"authorization", f"Bearer {key}".encode())], timeout=30)
    with fl.connect(server.flight.replace("grpc://", "grpc+tls://"), tls_root_certs=roots) as client:
        writer, _ = client.do_put(fl.FlightDescriptor.for_path("default", "kept"), rows.schema, options)
        writer.write_batch(rows)
        with pytest.raises(pa.ArrowException, match="object store") as refused:
            writer.close()
    return f"{refused.value!r} {getattr(refused.value, 'extra_info', '')}"


async def danube_calls(server: SecuredServer, key: str, tokens: list[str], shown: Shown) -> str:
    """Returns the token that the server made for the key."""
    client = await server.client(key)
    made = await producer(client, TOPIC)
    async with subscriber(client, topic=TOPIC) as received:
        await made.send(b"hello")
        assert await received.texts(1) == ["hello"]
    async with grpc.aio.secure_channel(server.url.split("://")[1], server.channel_credentials()) as channel:
        for service in ("Discovery/TopicLookup", "ProducerService/CreateProducer", "AuthService/Authenticate"):
            for token in tokens:
                for body in (b"", b"\xff\xff", auth_pb.AuthRequest(api_key=token).SerializeToString()):
                    metadata = (("authorization", f"Bearer {token}"),)
                    try:
                        answer = await channel.unary_unary(f"/danube.{service}")(body, metadata=metadata, timeout=20)
                        assert not answer or service != "AuthService/Authenticate" or token == key
                    except grpc.aio.AioRpcError as error:
                        shown.add(service, f"{error.details()} {error.trailing_metadata()}")
        request = auth_pb.AuthRequest(api_key=key).SerializeToString()
        answer = await channel.unary_unary("/danube.AuthService/Authenticate")(request, timeout=20)
        found: str = auth_pb.AuthResponse.FromString(answer).token
        return found


def verbs(server: SecuredServer, shown: Shown) -> None:
    where = ["--data", str(server.folder / "data"), "--config", str(server.folder / "frazil.yaml")]
    for verb in (["doctor"], ["doctor", "--json"], ["keys", "list"], ["topics", "list"]):
        command = [sys.executable, "-m", "frazil", *verb, *where]
        started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment())
        try:
            shown.add(" ".join(verb), (started.communicate(timeout=90)[0]))
        finally:
            started.kill()
        assert started.returncode is not None


class ProcessList(threading.Thread):
    """Looks at the command lines of the server, and of all it starts, until it is closed."""

    def __init__(self, server: SecuredServer) -> None:
        super().__init__()
        assert server.process is not None
        self._root = psutil.Process(server.process.pid)
        self._ended = threading.Event()
        self.lines: dict[int, bytes] = {}

    def run(self) -> None:
        while not self._ended.wait(0.02):
            for one in (self._root, *self._root.children(recursive=True)):
                with contextlib.suppress(OSError):
                    self.lines[one.pid] = Path(f"/proc/{one.pid}/cmdline").read_bytes()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()


def ended(server: SecuredServer, path: str) -> str:
    """The answer of a job once it has ended, which it does with an error: there is no catalog."""
    pause = threading.Event()
    for _ in range(600):
        answer = server.call("GET", path)
        if answer.json()["state"] not in ("waiting", "running"):
            return answer.text
        pause.wait(0.1)
    raise AssertionError(answer.text)


def files(server: SecuredServer, shown: Shown) -> list[str]:
    folder = server.folder / "data"
    found = [path for path in folder.rglob("*") if path.is_file() and path.name not in MEANT_TO_HOLD]
    for path in found:
        shown.add(f"file {path.relative_to(folder)}", path.read_bytes())
    return [path.name for path in found]


def stored_secret(etcd: Etcd) -> str:
    """The secret of Danube's tokens, which the metadata store alone may hold."""
    told = gateway(etcd.endpoint, "/v3/auth/authenticate", {"name": "root", "password": PASSWORD})
    key = {"key": base64.b64encode(b"/").decode(), "range_end": base64.b64encode(b"0").decode()}
    found: Any = gateway(etcd.endpoint, "/v3/kv/range", dict(key), str(told["token"]))
    for one in found["kvs"]:
        if base64.b64decode(one["key"]).endswith(b"/security/danube_secret"):
            secret: str = json.loads(base64.b64decode(one["value"]))["secret"]
            return secret
    raise AssertionError("there is no such record")


def test_no_planted_secret_is_shown_anywhere(server: SecuredServer, etcd: Etcd) -> None:
    shown = Shown()
    key, revoked = server.key("producer", "consumer", "operator"), server.key("admin")
    assert server.call("DELETE", f"/v1/keys/{revoked.split('_')[1]}").status_code == 200
    claims = {"iss": SHARED_ISSUER, "aud": AUDIENCE, "sub": "robot", "exp": now_s() + 600}
    token = jwt.encode(claims, server.secret, "HS256")
    expired = jwt.encode(claims | {"exp": 1_600_000_000}, server.secret, "HS256")
    wrong_key = key[:-4] + "aaaa"
    local = server.local_token
    tokens = [key, revoked, wrong_key, token, expired, token[:-4] + "AAAA", local[:-4] + "0000"]
    tenant = server.call("POST", "/v1/tenants", json={"tenant": "acme"}).json()["key"]["key"]
    tokens.append(tenant)
    foreign = jwt.encode(claims | {"iss": AWAY["issuer"]}, server.rsa, "RS256", {"kid": "unknown"})
    tokens.append(foreign)  # makes the server ask for the keys of this issuer
    with ProcessList(server) as listed:
        job = server.call("POST", "/v1/verify", json={})
        assert job.status_code == 202, job.text
        http_calls(server, [*tokens, local], shown)
        shown.add("a job", ended(server, f"/v1/verify/{job.json()['id']}"))
    assert len(listed.lines) > 1, "the job was a process"
    shown.add("process list", b"\n".join(listed.lines.values()))
    made = server.call("POST", "/v1/topics", json={"topic": "/default/kept", "ack": "object"})
    assert made.status_code == 201, made.text
    shown.add("DoPut", refused_by_the_store(server, key))
    flight_calls(server, [*tokens, local], shown)
    danube_token = asyncio.run(danube_calls(server, key, [one for one in tokens if one != tenant], shown))
    http_calls(server, [danube_token], shown)
    verbs(server, shown)
    names = files(server, shown)
    assert "audit.log" in names
    assert server.process is not None
    server.process.terminate()
    assert server.process.stdout is not None
    shown.add("stdout", server.process.stdout.read())
    assert server.process.wait(30) == 0
    shown.add("stderr", server.log())
    assert "its tokens are refused" in server.log(), "the address of the issuer is told"
    assert "acknowledges nothing until the object store answers" in server.log(), "the store's own error is told"
    files(server, shown)
    tls_key = server.files.key.read_text().splitlines()
    secrets = PLANTED | {
        "API key": key.rsplit("_", 1)[1],
        "revoked API key": revoked.rsplit("_", 1)[1],
        "API key of a tenant": tenant.rsplit("_", 1)[1],
        "token of an issuer that is away": foreign.rsplit(".", 1)[1],
        "wrong API key": wrong_key.rsplit("_", 1)[1],
        "token": token.rsplit(".", 1)[1],
        "expired token": expired.rsplit(".", 1)[1],
        "Danube token": danube_token.rsplit(".", 1)[1],
        "Danube secret": stored_secret(etcd),
        "shared secret of the issuer": server.secret,
        "private key": tls_key[1],
        "local token": local,
    }
    assert shown.leaks(secrets) == []
    assert shown.leaks({"this test can fail": "key:" + key.split("_")[1]}) != []
