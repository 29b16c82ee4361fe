"""Open all parts of security together: directory, verifiers, local token, audit log, quotas, and the gate over them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from frazil.core.clock import Clock
from frazil.core.disk.modes import close_to_group
from frazil.core.settings import Settings
from frazil.core.settings.metadata import MetadataType
from frazil.meta.opening import META_FILE, open_meta
from frazil.node.access.audit import Audit
from frazil.node.access.danube_tokens import DanubeTokens, danube_secret
from frazil.node.access.directory import AccessDirectory
from frazil.node.access.grants import BindingAdmin, KeyAdmin, RoleAdmin
from frazil.node.access.guard import SecureGate
from frazil.node.access.key_verifier import KeyVerifier
from frazil.node.access.local_token import LocalToken
from frazil.node.access.quotas import Quotas
from frazil.node.access.tokens import TokenVerifier


@dataclass(frozen=True, slots=True)
class AccessParts:
    """The open gate and its parts."""

    gate: SecureGate
    keys: KeyAdmin
    roles: RoleAdmin
    bindings: BindingAdmin
    danube: DanubeTokens
    audit: Audit
    quotas: Quotas


@asynccontextmanager
async def access_open(settings: Settings, clock: Clock) -> AsyncIterator[AccessParts]:
    """Open the parts, with a connection of their own to the metadata store; a failure leaves nothing open.

    Raises `MetadataUnavailable` if the store does not answer: without it, nobody's rights are known.
    """
    security = settings.security
    folder = settings.data or settings.log_folder
    async with AsyncExitStack() as stack:
        store = await asyncio.to_thread(open_meta, settings)
        stack.push_async_callback(asyncio.to_thread, store.close)
        _close_embedded_store(settings)
        directory = await asyncio.to_thread(AccessDirectory, store)
        stack.push_async_callback(asyncio.to_thread, directory.close)
        secret = await asyncio.to_thread(danube_secret, store)
        audit = Audit(security.audit, folder, clock)
        audit.start()
        stack.push_async_callback(asyncio.to_thread, audit.close)
        quotas = Quotas(security.quota, security.quotas, clock)
        keys = KeyVerifier(directory, clock)
        stack.callback(keys.close)
        danube = DanubeTokens(secret, keys, directory, clock, security.danube_token_s)
        tokens = await asyncio.to_thread(TokenVerifier, security.jwt, clock)
        stack.callback(tokens.close)
        tokens.start()
        local = await asyncio.to_thread(LocalToken, folder)
        stack.callback(local.remove)
        gate = SecureGate(
            directory,
            (keys, danube, tokens),
            clock,
            is_local=local.is_this,
            audit=audit,
            quotas=quotas,
            validity={"key": keys, "jwt": tokens},
        )
        admins = KeyAdmin(directory, clock), RoleAdmin(directory), BindingAdmin(directory)
        yield AccessParts(gate, *admins, danube, audit, quotas)


def _close_embedded_store(settings: Settings) -> None:
    """The store has the secret of Danube tokens: the group may read rows in the data folder, but not that."""
    if settings.metadata.type is MetadataType.SQLITE and settings.data is not None:
        for suffix in ("", "-wal", "-shm"):
            close_to_group(settings.data / f"{META_FILE}{suffix}")
