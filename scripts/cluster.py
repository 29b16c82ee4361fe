"""A cluster on this machine, for trial: one etcd, one S3 server and three brokers, each with a folder of its own.

    make cluster                                          until Ctrl-C
    .venv/bin/python scripts/cluster.py --brokers 2       --help lists the options

Everything is in one folder, `frazil-cluster` by default, and listens on loopback only. Started again on the same
folder, the cluster goes on where it was. The brokers are ordinary processes of `frazil serve`: kill one, and see what
happens.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

PARTS = Path(__file__).resolve().parents[1] / ".uv" / "parts"
KEYS = {"access_key_id": "frazil-trial", "secret_access_key": "only-for-a-trial-on-loopback"}
BUCKET = "frazil"
START_SECONDS_MAX = 60


class CannotStart(Exception):
    """A message for people: what is missing, or which port is taken."""


def main() -> int:
    arguments = _arguments()
    folder: Path = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    stop = signal.default_int_handler
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(_etcd(folder / "etcd", arguments.port))
            stack.enter_context(_s3(folder / "s3", arguments.port + 2))
            brokers = []
            for number in range(arguments.brokers):
                config = _broker_config(folder, number, arguments)
                brokers.append(stack.enter_context(_broker(config, folder / f"b{number + 1}.log")))
                _say(f"broker b{number + 1} is ready")
            print(_usage(brokers, folder), flush=True)
            signal.pause()
    except KeyboardInterrupt:
        _say("stopped; the data stays in " + str(folder))
    except CannotStart as error:
        _say(str(error))
        return 1
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run etcd, an S3 server and several brokers on this machine.")
    parser.add_argument("--brokers", type=int, default=3, choices=range(1, 10), help="how many brokers (3)")
    parser.add_argument("--folder", type=Path, default=Path("frazil-cluster"), help="where all data is")
    parser.add_argument("--port", type=int, default=7200, help="the first of the ports; 100 from there on are used")
    parser.add_argument("--tables", action="store_true", help="move rows to tables: starts Spark in each broker")
    return parser.parse_args()


def _say(text: str) -> None:
    print(f"cluster: {text}", file=sys.stderr, flush=True)


# --- the parts


@contextlib.contextmanager
def _etcd(folder: Path, port: int) -> Iterator[None]:
    client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port + 1}"
    command = [
        *(_part("etcd"), "--name", "one", "--data-dir", str(folder)),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"one={peer}"),
        *("--logger", "zap", "--log-level", "warn"),
    ]
    with _running(command, {}, folder.with_suffix(".log"), (port, port + 1), lambda: _is_healthy(client)):
        _say("etcd is ready")
        yield


@contextlib.contextmanager
def _s3(folder: Path, port: int) -> Iterator[None]:
    """The side folder must not begin with the name of the other."""
    objects, side = folder / "objects", folder / "side"
    for each in (objects / BUCKET, side):
        each.mkdir(parents=True, exist_ok=True)
    command = [_part("versitygw"), "--port", f"127.0.0.1:{port}", "posix", "--sidecar", str(side), str(objects)]
    keys = {"ROOT_ACCESS_KEY": KEYS["access_key_id"], "ROOT_SECRET_KEY": KEYS["secret_access_key"]}
    with _running(command, keys, folder.with_suffix(".log"), (port,), lambda: _accepts(port)):
        _say("the S3 server is ready")
        yield


def _broker_config(folder: Path, number: int, arguments: argparse.Namespace) -> Path:
    """Write the settings of a broker, as a user would."""
    first, name = arguments.port + 10 * (number + 1), f"b{number + 1}"
    store = {
        "type": "s3",
        "bucket": BUCKET,
        "region": "us-east-1",
        "endpoint": f"http://127.0.0.1:{arguments.port + 2}",
        **KEYS,
    }
    settings: dict[str, Any] = {
        "data": str(folder / name),
        "cluster": {"enabled": True, "broker_id": name},
        "metadata": {"type": "etcd", "endpoints": [f"http://127.0.0.1:{arguments.port}"]},
        "objects": {"enabled": True, "open_interval_ms": 1000},
        "object_store": store,
        "catalog": {"type": "sql", "uri": f"sqlite:///{folder / 'catalog.db'}"},
        "pipeline": {"enabled": arguments.tables},
        "http": {"port": first},
        "flight": {"port": first + 1},
        "broker": {"port": first + 2, "admin_port": first + 3},
    }
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(settings, indent=2), encoding="utf-8")
    path.chmod(0o600)
    return path


@contextlib.contextmanager
def _broker(config: Path, log: Path) -> Iterator[dict[str, Any]]:
    """Yield what the broker says of itself, with its pid, once it answers."""
    settings = json.loads(config.read_text(encoding="utf-8"))
    ports = [settings["http"]["port"], settings["flight"]["port"], *settings["broker"].values()]
    command = [sys.executable, "-m", "frazil", "serve", "--config", str(config), "--json"]
    announced = config.with_suffix(".announced")
    announced.unlink(missing_ok=True)
    with (
        announced.open("wb") as stdout,
        _running(command, {}, log, ports, lambda: announced.stat().st_size > 0, stdout) as process,
    ):
        yield {"name": config.stem, "pid": process.pid, **json.loads(announced.read_text(encoding="utf-8"))}


@contextlib.contextmanager
def _running(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    ports: Sequence[int],
    is_ready: Callable[[], bool],
    stdout: Any = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process within this context; it ends with SIGTERM. A process that the user has killed is no error."""
    for port in ports:
        if _accepts(port):
            raise CannotStart(f"port {port} is in use; choose others with --port")
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=stdout or output,
            stderr=output,
            start_new_session=True,  # Ctrl-C ends this script, which ends them in their order
        )
    try:
        _wait(process, is_ready, command[0], log)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], is_ready: Callable[[], bool], name: str, log: Path) -> None:
    until = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < until:
        if is_ready():
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
            raise CannotStart(f"{name} ended; see {log}")
    raise CannotStart(f"{name} is not ready after {START_SECONDS_MAX} s; see {log}")


def _part(name: str) -> str:
    found = shutil.which(name) or str(PARTS / name)
    if not Path(found).exists():
        raise CannotStart(f"{name} is missing; run: make parts")
    return found


def _accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            return b'"true"' in answer.read()
    except (urllib.error.URLError, OSError):
        return False


def _usage(brokers: list[dict[str, Any]], folder: Path) -> str:
    first, lines = brokers[0], ["", "The cluster runs:"]
    for one in brokers:
        lines.append(f"  {one['name']}  pid {one['pid']}  {one['address']}  {one['flight']}  {one['danube']}")
    lines += [
        "",
        "Try, in another terminal:",
        f"  export FRAZIL_SERVER={first['address']}",
        "  frazil topics create /default/orders --ack object",
        "  frazil produce /default/orders tea",
        "  frazil brokers list",
        "  frazil topics owner /default/orders",
        "",
        f"Kill a broker with kill -9 PID. Start it again with frazil serve --config {folder}/b1.yaml",
        "Ctrl-C stops all.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
