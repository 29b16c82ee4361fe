"""What a server and its mover write has no secret in it, whatever goes wrong; and every line is an event."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import httpx

from frazil.log.folder.ownership import served_by
from parts.etcd import etcd_server
from parts.movers import command, environment, make_place, process, publish, wait_until
from parts.processes import free_port

SECRETS = {
    "catalog": "pg-passw0rd-7f3a",
    "credential": "cl1ent-s3cret-91bc",
    "token": "bearer-t0ken-55de",
    "key": "AKIAS3CRETKEY77",
    "secret": "s3-secr3t-access-2c4d",
    "session": "s3ssion-t0ken-aa10",
    "etcd": "etcd-passw0rd-e88f",
}


def test_a_catalog_and_a_store_that_do_not_answer_are_reported_without_their_secrets(tmp_path: Path) -> None:
    catalog = {
        "uri": f"postgresql+psycopg2://frazil:{SECRETS['catalog']}@127.0.0.1:{free_port()}/lake",
        "credential": f"id:{SECRETS['credential']}",
        "token": SECRETS["token"],
    }
    store = {
        "type": "s3",
        "bucket": "lake",
        "endpoint": f"http://127.0.0.1:{free_port()}",
        "access_key_id": SECRETS["key"],
        "secret_access_key": SECRETS["secret"],
        "session_token": SECRETS["session"],
    }
    place = make_place(tmp_path / "data", tmp_path / "lake", catalog=catalog, object_store=store)
    publish(place.data, 10)
    log = tmp_path / "server.log"
    arguments = ("serve", "--port", "0", "--flight-port", "0", "--broker-port", "0", "--admin-port", "0", "--log-json")
    with process(place, log, *arguments) as server:
        wait_until(lambda: "the catalog cannot be reached" in log.read_text(), server)
        address = (served_by(place.settings) or {})["http"]
        shown = [httpx.get(address + path, timeout=30).text for path in ("/metrics", "/health/ready", "/topics")]
        server.terminate()
        assert server.wait(30) == 0
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert all("message" in event for event in events)
    assert any("catalog" in str(event).lower() for event in events), "it was tried"
    shown += [log.read_text(), *(str(path.read_text()) for path in place.data.glob("~*.json"))]
    assert not [name for name, secret in SECRETS.items() if any(secret in text for text in shown)]


def test_an_etcd_that_refuses_a_password_is_reported_without_it(tmp_path: Path) -> None:
    with etcd_server(tmp_path / "etcd") as etcd:
        metadata = {"type": "etcd", "endpoints": [etcd.endpoint], "username": "u", "password": SECRETS["etcd"]}
        place = make_place(tmp_path / "data", tmp_path / "lake", metadata=metadata)
        words = (
            "serve",
            "--port",
            "0",
            "--flight-port",
            "0",
            "--broker-port",
            "0",
            "--admin-port",
            "0",
            "--no-pipeline",
            "--log-json",
        )
        done = subprocess.run(
            command(place, *words), capture_output=True, text=True, timeout=60, env=environment(), check=False
        )
    assert done.returncode != 0
    assert "etcd" in done.stderr
    assert SECRETS["etcd"] not in done.stdout + done.stderr
