"""Credentials that a REST catalog vends with a table: when they expire, and when to reload the table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MARGIN_MS = 300_000
"""Credentials are renewed this long before they expire: a job may run for a while."""

_EXPIRY = re.compile(r"(.*[.-]expires-at(-ms)?(\..+)?)|expiration-time")
"""`s3.session-token-expires-at-ms`, `adls.sas-token-expires-at-ms.{account}`, `gcs.oauth2.token-expires-at`."""


def renew_at_ms(table: Mapping[str, Any], catalog: Mapping[str, Any], now_ms: int) -> int | None:
    """Return when to renew the credentials in a table's properties; None if they do not expire.

    Credentials that the catalog was opened with are not vended. Short-lived ones are renewed after half of their
    lifetime.
    """
    found = [
        int(value)
        for name, value in table.items()
        if _EXPIRY.fullmatch(name) and catalog.get(name) != value and str(value).isdecimal()
    ]
    if not found:
        return None
    expires_ms = min(found)
    return max(expires_ms - MARGIN_MS, now_ms + (expires_ms - now_ms) // 2)
