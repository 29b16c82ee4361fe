"""Movers and Spark with security and TLS on: the right credentials move and read rows, others are refused."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from frazil.core.credentials import ClientCredentials
from frazil.core.errors import PermissionDenied
from frazil.core.offsets import OffsetRange
from frazil.core.settings import Settings
from frazil.lake.catalogs.opening import open_catalog
from frazil.node.movers.lease import MoverName, this_host
from frazil.node.movers.log_source import RemoteOwner
from frazil.node.movers.table_progress import status_path
from frazil.node.tiers.logs import fetch_range
from parts.movers import (
    TABLE,
    TOPIC,
    Place,
    answer,
    assert_every_row_once,
    make_place,
    moved,
    publish,
    run,
    told,
    wait_until,
)
from parts.secured_server import SecuredServer
from parts.spark import SparkCluster

ROWS = 2_000
WRONG_KEY = "frz_aaaaaaaaaaaaaaaa_" + "a" * 43

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.timeout(300),
]


@contextlib.contextmanager
def secured(folder: Path, lake: Path, *, moves: bool = False) -> Iterator[tuple[SecuredServer, Place]]:
    """A server with `ROWS` rows, and its settings without any credentials for clients."""
    place = make_place(folder / "data", lake)
    publish(place.data, ROWS)
    sections = json.loads(place.config.read_text())
    del sections["flight"]
    server = SecuredServer(folder, others=sections)
    server.moves = moves
    server.start()
    try:
        yield server, place
    finally:
        server.kill()


def with_key(server: SecuredServer, place: Place, key: str) -> Place:
    """The settings of a mover on another host: the lake, a file with the key, and the CA."""
    folder = server.folder / f"client-{key[:20]}"
    folder.mkdir()
    token_file, ca = folder / "key", folder / "ca.pem"
    token_file.write_text(key)
    ca.write_bytes(server.files.ca.read_bytes())
    sections = json.loads(place.config.read_text())
    sections["client"] = {"token_file": str(token_file), "ca": str(ca)}
    return make_place(place.data, folder, **sections)


@contextlib.contextmanager
def command_lines() -> Iterator[set[bytes]]:
    """The command lines of all processes of this host meanwhile."""
    found: set[bytes] = set()
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.2):
            for pid in psutil.pids():
                with contextlib.suppress(OSError):
                    found.add(Path(f"/proc/{pid}/cmdline").read_bytes())

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield found
    finally:
        ended.set()
        looking.join()


def assert_hides(text: bytes, *secrets: str) -> None:
    """As it is, in hexadecimal digits, and in base64 wherever in a longer text it begins."""
    for secret in (one.rpartition("_")[2].encode() for one in secrets):
        shifted = (base64.b64encode(b"\0" * shift + secret)[4 if shift else 0 : -4] for shift in range(3))
        for form in (secret, secret.hex().encode(), *shifted):
            assert form not in text


def files_of(server: SecuredServer) -> bytes:
    """What is in the data folder, with the status of the mover, but for the token itself."""
    found = [path for path in (server.folder / "data").rglob("*") if path.is_file() and path.name != "~token"]
    assert status_path(Settings.of_folder(server.folder / "data")) in found
    return b"".join(path.read_bytes() for path in found)


# --- movers


def test_the_servers_own_mover_needs_no_credentials(tmp_path: Path) -> None:
    with command_lines() as lines, secured(tmp_path / "server", tmp_path / "lake", moves=True) as (server, place):
        assert server.process is not None
        wait_until(lambda: moved(place) == ROWS, server.process)
        assert told(place)["topics"][TOPIC]["error"] is None
        local = server.local_token
        assert_hides(files_of(server), local)
        assert server.stop() == 0
        assert "the mover ended" not in server.log()
        assert_hides(server.log().encode(), local)
    assert any(b"pipeline\0run" in line for line in lines)
    assert_hides(b"\n".join(lines), local)
    assert_every_row_once(place, ROWS)


def test_a_mover_elsewhere_moves_rows_with_its_key_alone(
    spark_hosts: SparkCluster, one_executor: None, tmp_path: Path
) -> None:
    """Tasks see neither the owner's disk nor the files of the mover's credentials."""
    with secured(spark_hosts.hidden / tmp_path.name, tmp_path / "lake") as (server, place):
        arguments = ("pipeline", "run", "--once", "--json", "--master", spark_hosts.master, "--owner", server.flight)
        refused = run(with_key(server, place, WRONG_KEY), *arguments)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert json.loads(refused.stderr)["error"] == "unauthenticated"
        assert_hides(refused.stderr.encode(), WRONG_KEY)
        assert not open_catalog(place.settings).table_exists(TABLE)
        key = server.key("operator", "reader")
        with command_lines() as lines:
            done = run(with_key(server, place, key), *arguments)
        assert answer(done)["rows"] == ROWS
        assert any(b"CoarseGrainedExecutorBackend" in line for line in lines)
        for text in (done.stderr.encode(), b"\n".join(lines), files_of(server), server.log().encode()):
            assert_hides(text, key, server.local_token)
    assert_every_row_once(place, ROWS)


def test_a_mover_needs_the_roles_operator_and_reader(tmp_path: Path) -> None:
    with secured(tmp_path / "server", tmp_path / "lake") as (server, _):
        ca = server.files.ca.read_bytes()
        reader, operator, both = (
            RemoteOwner(server.flight, ClientCredentials(server.key(*roles), ca=ca))
            for roles in (["reader"], ["operator"], ["operator", "reader"])
        )
        mover = MoverName("one", this_host(), 1)
        for call in (reader.logs, lambda: reader.ask_to_lead(mover, 2_000), lambda: reader.tell(mover, {})):
            with pytest.raises(PermissionDenied):
                call()
        (log,) = operator.logs()
        assert operator.ask_to_lead(mover, 2_000).leader == mover
        operator.give_up(mover)
        wanted = OffsetRange(0, ROWS)
        with pytest.raises(PermissionDenied, match="may not read the topic '/default/orders'; an admin"):
            list(fetch_range(server.flight, TOPIC, log.log_id, wanted, operator.credentials))
        rows = fetch_range(server.flight, TOPIC, log.log_id, wanted, both.credentials)
        assert sum(batch.num_rows for batch in rows) == ROWS
        for one in (reader, operator, both):
            one.close()


def test_no_token_is_in_the_event_log_of_spark(connect: str, parts_folder: Path, tmp_path: Path) -> None:
    with secured(tmp_path / "server", tmp_path / "lake") as (server, place):
        local = server.local_token
        assert answer(run(place, "pipeline", "run", "--once", "--json", "--remote", connect))["rows"] == ROWS
    assert_every_row_once(place, ROWS)
    events = [path for path in (parts_folder / "connect" / "events").rglob("*") if path.is_file()]
    text = b"".join(path.read_bytes() for path in events)
    assert b"SparkListenerConnectOperationStarted" in text, "the plan, with the credentials in it, was not told of"
    assert_hides(text, local)
    assert_hides((parts_folder / "connect" / "server.log").read_bytes(), local)


# --- the Spark source


def test_the_spark_source_reads_with_a_token_file_and_a_ca(session: SparkSession, tmp_path: Path) -> None:
    def count(**options: Any) -> int:
        given = {"subscribe": TOPIC, "config": str(place.config), "owner": server.flight, **options}
        return session.read.format("frazil").options(**given).load().count()

    with secured(tmp_path / "server", tmp_path / "lake") as (server, place):
        right, reader, ca = tmp_path / "right", tmp_path / "reader", str(server.files.ca)
        right.write_text(server.key("operator", "reader"))
        reader.write_text(server.key("reader"))
        assert count(tokenFile=str(right), ca=ca) == ROWS
        for options, reason in (
            ({"ca": ca}, "credentials are missing or invalid"),
            ({"ca": ca, "tokenFile": str(reader)}, "may not operate the server"),
            ({"tokenFile": str(right)}, "not signed by a trusted authority"),
        ):
            with pytest.raises(PySparkException, match=reason) as refused:
                count(**options)
            assert_hides(str(refused.value).encode(), right.read_text(), reader.read_text())
