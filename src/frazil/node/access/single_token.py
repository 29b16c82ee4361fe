"""The gate of a door that this process opens for its own mover or tasks alone: they have one token."""

from __future__ import annotations

import hmac
import secrets

from frazil.core.errors import Unauthenticated
from frazil.core.principal import LOCAL, Principal
from frazil.node.access.gate import Credentials, OpenGate


class SingleTokenGate(OpenGate):
    """Who has the token is `LOCAL` and may do everything; nobody else is let in."""

    is_on = True

    def __init__(self, token: str | None = None) -> None:
        """Without a token, a random one is made."""
        self.token = secrets.token_hex(32) if token is None else token
        self._expected = f"Bearer {self.token}".encode()

    def known(self, given: Credentials) -> Principal | None:
        is_right = hmac.compare_digest((given.authorization or "").encode(), self._expected)
        return LOCAL if is_right else None

    async def identify(self, given: Credentials) -> Principal:
        found = self.known(given)
        if found is None:
            raise Unauthenticated
        return found
