"""Certificates for tests: a CA, a server's and a client's, and other ones that do not fit."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frazil.doors.dev_certificates import FILES, make_certificates


@dataclass(frozen=True, slots=True)
class Certificates:
    folder: Path

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def client(self) -> tuple[str, str]:
        return str(self.folder / "client.pem"), str(self.folder / "client-key.pem")

    def tls(self, client_certificates: str = "none") -> dict[str, Any]:
        """The settings of a server."""
        return {
            "certificate": str(self.folder / "server.pem"),
            "key": str(self.folder / "server-key.pem"),
            "client_ca": str(self.ca),
            "client_certificates": client_certificates,
        }

    def replace_by(self, other: Certificates) -> None:
        """Put the files of others in place, each at once."""
        for name in FILES:
            draft = self.folder / f"{name}.new"
            shutil.copy(other.folder / name, draft)
            draft.replace(self.folder / name)


def certificates(folder: Path, *hosts: str) -> Certificates:
    make_certificates(folder, hosts)
    return Certificates(folder)
