"""What Spark needs on this machine, checked without starting it."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from frazil.core.errors import InvalidSettings
from frazil.core.extras import install_hint
from frazil.core.process.child import run_bounded

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
    """Return the Java that Spark would start: that of JAVA_HOME, else the first on PATH."""
    home = environment.get("JAVA_HOME")
    path = str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environment.get("PATH"))
    if path is None:
        return None
    try:
        done = run_bounded([path, "-version"], seconds_max=LOOK_SECONDS_MAX)
    except OSError:  # also one that did not end in time
        return None
    found = _VERSION.search(done.stderr + done.stdout)
    return Java(path, int(found["major"])) if found else None


def package_version(name: str) -> str | None:
    """Read the installer's records: importing pyspark takes a second."""
    if importlib.util.find_spec(name) is None:
        return None
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "of unknown version"


def missing_part(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return what prevents Spark from running here, with the remedy; None if nothing does."""
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
    """Refuse in-memory stores: Spark's tasks are other processes, and files in their memory would be in no table."""
    from frazil.core.settings.lake import ObjectStoreType

    if settings.object_store.type is ObjectStoreType.MEMORY:
        raise InvalidSettings(
            "object_store.type: memory is that of one process, and Spark's tasks write the files in others; use local, "
            "s3, gcs or azure"
        )
