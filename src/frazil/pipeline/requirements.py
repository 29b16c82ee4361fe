"""What Spark needs of the machine, looked for without starting any of it."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from frazil.core.errors import InvalidSettings
from frazil.core.extras import install_hint

if TYPE_CHECKING:
    from frazil.core.settings import Settings

JAVA_VERSIONS = (17, 21)
LOOK_SECONDS_MAX = 20
PACKAGES = ("pyspark", "pyiceberg")

_VERSION = re.compile(r'version "(?P<major>\d+)[^"]*"')


@dataclass(frozen=True, slots=True)
class Java:
    path: str
    version: int

    @property
    def fits(self) -> bool:
        return self.version in JAVA_VERSIONS


def find_java(environment: Mapping[str, str] = os.environ) -> Java | None:
    """The Java that Spark would start: that of JAVA_HOME, else the first on PATH."""
    home = environment.get("JAVA_HOME")
    path = str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environment.get("PATH"))
    if path is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603 - it is the program that Spark is about to run
            [path, "-version"], capture_output=True, text=True, timeout=LOOK_SECONDS_MAX, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(done.stderr + done.stdout)
    return Java(path, int(found["major"])) if found else None


def package_version(name: str) -> str | None:
    """Asked of the installer's records: importing pyspark takes a second."""
    if importlib.util.find_spec(name) is None:
        return None
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "of unknown version"


def missing_part(environment: Mapping[str, str] = os.environ) -> str | None:
    """What keeps Spark from running here, as a sentence with the remedy; None if nothing does."""
    for name in PACKAGES:
        if package_version(name) is None:
            return install_hint(name)
    java = find_java(environment)
    versions = " or ".join(map(str, JAVA_VERSIONS))
    if java is None:
        return f"no Java was found: install Java {versions}, or set JAVA_HOME"
    if not java.fits:
        return f"{java.path} is Java {java.version}: install Java {versions}, or set JAVA_HOME"
    return None


def check_tasks_reach_store(settings: Settings) -> None:
    """Spark's tasks are other processes: what they wrote into their own memory would be in no table."""
    from frazil.core.lake_settings import ObjectStoreType

    if settings.object_store.type is ObjectStoreType.MEMORY:
        raise InvalidSettings(
            "object_store.type: memory is that of one process, and Spark's tasks write the files in others; use local, "
            "s3, gcs or azure"
        )
