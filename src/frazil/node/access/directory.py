"""The directory: keys, roles, bindings and creators of topics in the metadata store, followed by a watch.

    /security/keys/{id}                              `frazil.node.access.keys`
    /security/roles/{name}                           {"rules": [{"effect", "actions", "kind", "pattern"}, …]}
    /security/bindings/{principal}/{hash}            {"principal", "role", "scope"}; hash of role and scope
    /security/creators/{namespace}/{topic}           `frazil.node.access.topic_quotas.creators`

Each change is a compare-and-set; a binding is stored in one step with its role. A change by any process is effective
here within a second: it replaces the state and increments `generation`, by which callers drop what they have derived
from rights. While the store is unavailable, the last known state applies.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, unquote

from frazil.core.errors import FrazilError, InvalidInput, TryLater
from frazil.core.principal import Principal
from frazil.meta.record_follower import RecordFollower
from frazil.meta.store import ABSENT, MetaStore, StoredEntry
from frazil.meta.topic_records import CREATOR_RECORDS
from frazil.node.access.keys import KeyRecord, UnreadableKey
from frazil.node.access.roles import BUILT_IN, EVERYTHING, UNREADABLE, Binding, Role, RoleGrant, made_role
from frazil.node.access.topic_quotas.creators import Creators

SECURITY = "/security/"
KEYS, ROLES, BINDINGS = (f"{SECURITY}{what}/" for what in ("keys", "roles", "bindings"))
TRIES_MAX = 20

_log = logging.getLogger("frazil.access")


def binding_key(binding: Binding) -> str:
    digest = hashlib.sha256(f"{binding.role}\0{binding.scope}".encode()).hexdigest()[:32]
    return f"{BINDINGS}{quote(binding.principal, safe='')}/{digest}"


def bindings_prefix(principal: str) -> str:
    return f"{BINDINGS}{quote(principal, safe='')}/"


@dataclass(frozen=True, slots=True)
class AccessState:
    """All keys, roles and bindings at one moment. Never changed, only replaced."""

    keys: Mapping[str, KeyRecord] = field(default_factory=dict)
    roles: Mapping[str, Role] = field(default_factory=dict)
    """Without the built-in ones."""
    bindings: Mapping[str, Mapping[str, Binding]] = field(default_factory=dict)
    """By principal and store key."""

    def role(self, name: str) -> Role | None:
        return BUILT_IN.get(name) or self.roles.get(name)

    def with_entry(self, key: str, value: bytes | None) -> AccessState:
        """Return the state with one more, one changed or one less record."""
        if key.startswith(KEYS):
            name = key.removeprefix(KEYS)
            return replace(self, keys=_with(self.keys, name, None if value is None else _read_key(name, value)))
        if key.startswith(ROLES):
            name = unquote(key.removeprefix(ROLES))
            return replace(self, roles=_with(self.roles, name, None if value is None else read_role(name, value)))
        if key.startswith(BINDINGS):
            name = unquote(key.removeprefix(BINDINGS).partition("/")[0])
            read = None if value is None else _read_binding(name, value)
            own = _with(self.bindings.get(name, {}), key, read)
            return replace(self, bindings=_with(self.bindings, name, own or None))
        return self


def _with(known: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    changed = {**known, name: value}
    if value is None:
        del changed[name]
    return changed


def _read_key(key_id: str, value: bytes) -> KeyRecord | None:
    try:
        return KeyRecord.decode(key_id, value)
    except UnreadableKey as error:
        _log.warning("%s; it is refused", error)
        return None


def read_role(name: str, value: bytes) -> Role:
    """Decode a role of a user; `UNREADABLE` stands for one that cannot be decoded."""
    try:
        return made_role(name, json.loads(value)["rules"])
    except (ValueError, KeyError, TypeError, InvalidInput) as error:
        _log.warning("the role %a can't be read, so its principals have no rights: %s", name, error)
        return UNREADABLE


def _read_binding(principal: str, value: bytes) -> Binding:
    try:
        read = json.loads(value)
        return Binding(principal, str(read["role"]), str(read["scope"]))
    except (ValueError, KeyError, TypeError) as error:
        _log.warning("a binding of %a can't be read, so it has no rights: %s", principal, type(error).__name__)
        return Binding(principal, UNREADABLE.name)


class AccessDirectory:
    """The current state, and compare-and-set changes to it. Any thread may call it; changes block."""

    def __init__(self, store: MetaStore, *, follows: bool = True) -> None:
        """Load the state. `follows`: a thread keeps it current; without, it is that of the moment."""
        self.generation = 0
        self._store = store
        self._state = AccessState()
        self.creators = Creators()
        """Who created which topic. Replaced when everything is read again: ask for it each time."""
        self._follower = RecordFollower(store, SECURITY, self, what="keys, roles and bindings", log=_log)
        if follows:
            self._follower.start()

    # --- reading

    @property
    def state(self) -> AccessState:
        return self._state

    def key(self, key_id: str) -> KeyRecord | None:
        return self._state.keys.get(key_id)

    def grants(self, who: Principal) -> tuple[RoleGrant, ...]:
        """Return the roles of a principal: by its bindings, and those that its token names, with the scope `*`.

        An unknown role grants nothing.
        """
        state, found = self._state, []
        for binding in state.bindings.get(who.name, {}).values():
            role = UNREADABLE if binding.role == UNREADABLE.name else state.role(binding.role)
            if role is not None:
                scope = EVERYTHING if role is UNREADABLE else binding.scope
                found.append(RoleGrant(role.within(scope), scope))
        for name in who.roles:
            role = state.role(name)
            if role is not None:
                found.append(RoleGrant(role, EVERYTHING))
        return tuple(found)

    # --- changes

    def read(self, key: str) -> StoredEntry | None:
        return self._store.get(key)

    def change(self, key: str, changed: Callable[[bytes | None], bytes | None]) -> None:
        """Store what `changed` makes of the present value; None deletes it. Repeats it if another caller was faster."""
        for _ in range(TRIES_MAX):
            entry = self._store.get(key)
            value = changed(None if entry is None else entry.value)
            if value is None:
                if entry is None:
                    return
                if self._store.delete(key, entry.revision):
                    self._follower.apply(key, None, entry.revision)
                    return
            else:
                revision = self._store.put_if(key, value, ABSENT if entry is None else entry.revision)
                if revision is not None:
                    self._follower.apply(key, value, revision)
                    return
        raise TryLater(f"{key} is changed by others all the time; try again")

    def put_beside(self, key: str, value: bytes, needed: str, missing: FrazilError) -> None:
        """Store a record that needs another one, in one step with it; raises `missing` if there is none.

        The other one gets a new revision, so that a concurrent deletion of it looks again for records that need it.
        """
        for _ in range(TRIES_MAX):
            entry = self._store.get(needed)
            if entry is None:
                raise missing
            revision = self._store.put_if(needed, entry.value, entry.revision, also={key: value})
            if revision is not None:
                self._follower.apply(needed, entry.value, revision)
                self._follower.apply(key, value, revision)
                return
        raise TryLater(f"{needed} is changed by others all the time; try again")

    def bindings_of(self, role: str) -> int:
        """Return how many bindings name a role, as they are stored now."""
        each = (AccessState().with_entry(entry.key, entry.value) for entry in self._store.list(BINDINGS))
        return sum(one.role == role for state in each for own in state.bindings.values() for one in own.values())

    def delete_below(self, prefix: str) -> None:
        """Delete all records below a prefix."""
        self._store.delete_all((), (prefix,))

    def close(self) -> None:
        """End the watch. The store stays open: the one who opened it closes it."""
        self._follower.close()

    # --- the state that the follower keeps current

    def load(self, entries: Sequence[StoredEntry]) -> None:
        keys: dict[str, KeyRecord] = {}
        roles: dict[str, Role] = {}
        bindings: dict[str, dict[str, Binding]] = {}
        for entry in entries:
            one = AccessState().with_entry(entry.key, entry.value)
            keys.update(one.keys)
            roles.update(one.roles)
            for principal, own in one.bindings.items():
                bindings.setdefault(principal, {}).update(own)
        self._state = AccessState(keys, roles, bindings)
        self.creators = Creators(entries)
        self.generation += 1  # after the state: who sees the new number sees the new state

    def apply(self, key: str, value: bytes | None) -> None:
        if key.startswith(CREATOR_RECORDS):  # no right depends on it: what is derived from rights stays
            self.creators.apply(key, value)
            return
        self._state = self._state.with_entry(key, value)
        self.generation += 1
