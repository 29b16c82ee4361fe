"""`frazil version`: versions of Frazil and its dependencies."""

from __future__ import annotations

import platform
from importlib import metadata

import frazil
from frazil.cli.terminal import options, output


def version(
    data: options.Data = None,  # noqa: ARG001 - every verb takes these two, so that a wrapper may always add them
    config: options.Config = None,  # noqa: ARG001
    as_json: options.Json = False,
) -> None:
    """Print the version of Frazil and of its main dependencies."""
    versions = {
        "frazil": frazil.__version__,
        "python": platform.python_version(),
        "pyarrow": metadata.version("pyarrow"),
    }
    if as_json:
        output.print_json(versions)
    else:
        print(" ".join(f"{name} {number}" for name, number in versions.items()))
