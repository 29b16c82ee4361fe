"""A stand-in for AWS Glue: moto's server. The real service is to be had only from AWS, so what is tested with this
is our use of Glue's interface, not Glue.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from parts.processes import accepts, free_port, running


@contextlib.contextmanager
def glue_stand_in(folder: Path) -> Iterator[str]:
    """The address of the stand-in."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    server = Path(sys.executable).with_name("moto_server")
    with running([server, "-H", "127.0.0.1", "-p", str(port)], {}, folder / "moto.log", lambda: accepts(port)):
        yield f"http://127.0.0.1:{port}"
