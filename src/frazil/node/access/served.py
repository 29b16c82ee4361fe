"""Credentials for the server of a data folder: a process that can read the folder has its token and its certificate."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from frazil.core.addresses import is_loopback
from frazil.core.credentials import ClientCredentials, credentials_of, pem_file
from frazil.core.errors import InvalidSettings
from frazil.core.settings import Settings
from frazil.node.access.local_token import TOKEN_FILE, read_local_token

_LEAF = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
"""The server's own certificate, the first in its file. Those that follow have signed others too."""


def served_credentials(settings: Settings, served: Mapping[str, Any], door: str = "flight") -> ClientCredentials:
    """Return the credentials for the address of a door in `~serve` of the folder: the local token on loopback.

    Another address, such as the advertised one, gets those of the settings alone.
    """
    return credentials_at(settings, served, str(served[door]), door)


def credentials_at(
    settings: Settings, served: Mapping[str, Any], address: str, door: str = "flight"
) -> ClientCredentials:
    found = named = credentials_of(settings.client)
    if not is_loopback(urlsplit(address).hostname):
        return found
    if settings.data is not None and read_local_token(settings.data) is not None:
        found = replace(found, token=None, token_file=settings.data / TOKEN_FILE, others=named)
    certificate = served.get(f"{door}_certificate")
    if isinstance(certificate, dict):
        try:
            chain = pem_file(Path(str(certificate["file"])), door) or b""
        except InvalidSettings:
            return found  # this user may not read it: the settings say whom to trust
        leaf = _LEAF.search(chain)
        if leaf is not None:
            found = replace(found, ca=leaf[0] + b"\n", pinned_name=str(certificate["name"]), others=named)
    return found
