"""`frazil certs`: certificates for a trial."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from frazil.cli.terminal import options, output
from frazil.core.errors import FrazilError, InvalidInput
from frazil.core.extras import needs

app = typer.Typer(no_args_is_help=True, help="Make certificates for a trial.")

SETTINGS = """\
security:
  enabled: true
  tls:
    certificate: {folder}/server.pem
    key: {folder}/server-key.pem
    client_ca: {folder}/ca.pem
    client_certificates: none # or required
client:
  ca: {folder}/ca.pem
  # certificate: {folder}/client.pem
  # key: {folder}/client-key.pem
"""


@app.callback()
def _group() -> None:
    """Force a group even with one verb: Typer would leave its name out."""


@app.command("dev")
def dev(
    out: Annotated[Path, typer.Option("--out", help="The folder for the files.")] = Path("frazil-certs"),
    hosts: Annotated[
        list[str] | None, typer.Option("--host", help="A further name or address of the server; repeatable.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    data: options.Data = None,  # noqa: ARG001 - on every verb, so that a wrapper may always add them
    config: options.Config = None,  # noqa: ARG001
    as_json: options.Json = False,
) -> None:
    """Make a CA, a certificate for the server and one for a client, valid for a year. Not for production."""
    with needs(FrazilError):
        from frazil.doors.dev_certificates import FILES, make_certificates
    there = [name for name in FILES if (out / name).exists()]
    if there and not force:
        what = f"--out: {out / there[0]} exists; give another folder, or --force to replace it"
        raise InvalidInput(what, field="out")
    names = make_certificates(out, hosts or [])
    folder = out.absolute()
    if as_json:
        files = {name.removesuffix(".pem").replace("-", "_"): str(folder / name) for name in FILES}
        output.print_json({**files, "hosts": names})
        return
    output.say(f"made certificates for {', '.join(names)} in {folder}; use them with these settings:")
    print(SETTINGS.format(folder=folder), end="")
