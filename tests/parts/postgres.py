"""PostgreSQL on a free port, with a password, as Debian packages it. It refuses to run as root: then as `postgres`."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from parts.processes import accepts, free_port, part, running

USER = "frazil"
PASSWORD = "pg-s3cret/é"  # what must be escaped in a URL, and must never be seen in a message
ESCAPED = "pg-s3cret%2F%C3%A9"


@dataclass(frozen=True, slots=True)
class Postgres:
    port: int

    @property
    def uri(self) -> str:
        return f"postgresql+psycopg2://{USER}:{ESCAPED}@127.0.0.1:{self.port}/postgres"


@contextlib.contextmanager
def postgres() -> Iterator[Postgres]:
    programs = part("postgres")
    folder = Path(tempfile.mkdtemp(prefix="frazil-postgres-"))
    try:
        (folder / "password").write_text(PASSWORD, encoding="utf-8")
        as_user = _as_user(folder)
        subprocess.run(
            [
                *(*as_user, programs / "initdb", "-D", folder / "data", "-U", USER, "--auth=scram-sha-256"),
                *(f"--pwfile={folder / 'password'}", "--no-sync", "--encoding=UTF8", "--locale=C"),
            ],
            check=True,
            capture_output=True,
            cwd=folder,
        )
        port = free_port()
        command = [*as_user, programs / "postgres", "-D", folder / "data", "-h", "127.0.0.1", "-p", str(port)]
        options = ["-c", "unix_socket_directories=", "-c", "fsync=off"]
        with running([*command, *options], {}, folder / "server.log", lambda: accepts(port)):
            yield Postgres(port)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _as_user(folder: Path) -> list[str]:
    if os.getuid() != 0:
        return []
    user = pwd.getpwnam("postgres")
    for path in (folder, folder / "password"):
        os.chown(path, user.pw_uid, user.pw_gid)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--"]
