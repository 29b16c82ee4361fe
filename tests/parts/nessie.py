"""An Iceberg REST catalog: Nessie, with its warehouse on the S3 server. It keeps only a table's newest snapshot."""

from __future__ import annotations

import contextlib
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from parts.jvm import SHORT_LIVED_JVM
from parts.processes import free_port, part, running
from parts.s3 import ACCESS_KEY, REGION, S3, SECRET_KEY

WAREHOUSE = "lake"


@dataclass(frozen=True, slots=True)
class Nessie:
    port: int

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}/iceberg/"


@contextlib.contextmanager
def nessie(s3: S3, folder: Path) -> Iterator[Nessie]:
    folder.mkdir(parents=True, exist_ok=True)
    port, bucket = free_port(), s3.make_bucket(WAREHOUSE)
    options = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": port,
        "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": 0,
        "nessie.version.store.type": "IN_MEMORY",
        "nessie.catalog.default-warehouse": WAREHOUSE,
        f"nessie.catalog.warehouses.{WAREHOUSE}.location": f"s3://{bucket}/",
        "nessie.catalog.service.s3.default-options.endpoint": s3.endpoint,
        "nessie.catalog.service.s3.default-options.path-style-access": "true",
        "nessie.catalog.service.s3.default-options.region": REGION,
        "nessie.catalog.service.s3.default-options.request-signing-enabled": "false",  # clients have keys of their own
        "nessie.catalog.service.s3.default-options.access-key": "urn:nessie-secret:quarkus:frazil.keys",
        "frazil.keys.name": ACCESS_KEY,
        "frazil.keys.secret": SECRET_KEY,
    }
    command = [
        part("java/bin/java"),
        "-Xmx512m",
        *SHORT_LIVED_JVM,
        *(f"-D{name}={value}" for name, value in options.items()),
    ]
    with running([*command, "-jar", part("nessie.jar")], {}, folder / "nessie.log", lambda: _answers(port)):
        yield Nessie(port)


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/iceberg/v1/config", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
