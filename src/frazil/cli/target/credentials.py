"""Credentials of a verb for a named server, from the settings or the environment; never from the command line.

Without a settings file only the short variables are looked at, so that a verb that only asks a server does not import
the settings.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from frazil.core.credentials import ClientCredentials, TokenReader, checked_token, pem_file
from frazil.core.errors import InvalidInput

if TYPE_CHECKING:
    import ssl

TOKEN, TOKEN_FILE, CA = "FRAZIL_TOKEN", "FRAZIL_TOKEN_FILE", "FRAZIL_CA"
LONG = "FRAZIL_CLIENT__"


def named_credentials(config: Path | None = None) -> ClientCredentials:
    """Return what the settings file, or the environment, gives for any named server."""
    environment = os.environ
    if config is not None or environment.get("FRAZIL_CONFIG") or any(name.startswith(LONG) for name in environment):
        from frazil.core.credentials import credentials_of
        from frazil.core.settings import resolve_settings

        return credentials_of(resolve_settings(None, config).client)
    token, file, ca = (environment.get(name) or None for name in (TOKEN, TOKEN_FILE, CA))
    if token is not None and file is not None:
        raise InvalidInput(f"{TOKEN} and {TOKEN_FILE}: set one of them", field=TOKEN)
    found = ClientCredentials(
        token=None if token is None else checked_token(token, TOKEN),
        token_file=None if file is None else Path(file),
        ca=pem_file(None if ca is None else Path(ca), CA),
    )
    TokenReader(found).read()
    return found


def context_of(given: ClientCredentials) -> ssl.SSLContext:
    """Return the TLS context of a client: it always verifies the server."""
    import ssl

    cadata = None if given.ca is None else given.ca.decode("ascii", "replace")
    context = ssl.create_default_context(cadata=cadata)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if given.pinned_name is not None:
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.check_hostname = False  # just this one certificate is trusted, whatever names it has
    if given.certificate is not None and given.key is not None:
        _load_pair(context, given.certificate, given.key)
    return context


def _load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """OpenSSL takes a pair from a file only: one in memory, which nobody else can open."""
    import ssl

    with os.fdopen(os.memfd_create("frazil-client", os.MFD_CLOEXEC), "wb") as file:
        file.write(certificate + b"\n" + key)
        file.flush()
        try:
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password="")
        except ssl.SSLError as error:
            reason = error.reason or "they cannot be used"
            raise InvalidInput(f"client.certificate and client.key: {reason}", field="client.certificate") from None
