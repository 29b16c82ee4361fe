"""Timeouts that PyIceberg's SQL catalog lacks on PostgreSQL: for an answer, and for a vanished client.

Two waits would otherwise be unbounded. A server, or a proxy before it, may keep a connection open and never answer: the
connection is cut, and the outcome of a commit is then unknown, as after any lost answer. And a client that was stopped,
or whose host is gone, between the update of a table's row and its COMMIT holds the lock of that row: the server ends
such a session, so that other movers can continue.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import Engine, create_engine, event

from frazil.lake.catalogs.rest import ANSWER_S_MAX
from frazil.lake.catalogs.sql import SharedSqlCatalog

IDLE_IN_TRANSACTION_MS_MAX = 20_000
"""Our transactions are a few statements without work between them."""
LOCK_WAIT_MS_MAX = 40_000
"""Longer than an idle client may hold a lock, and shorter than the answer timeout."""

_log = logging.getLogger("frazil.lake")


def is_postgres(uri: str) -> bool:
    return urlsplit(uri).scheme.split("+")[0] == "postgresql"


class PostgresCatalog(SharedSqlCatalog):
    def _init_catalog(self) -> None:
        self.engine = _bounded(self.engine, ANSWER_S_MAX)
        super()._init_catalog()


def _bounded(engine: Engine, answer_s_max: float) -> Engine:
    """Return the engine with limits; a driver other than psycopg2 gets only those of the server."""
    factory = {"connection_factory": _connection_class(answer_s_max)} if engine.dialect.driver == "psycopg2" else {}
    bounded = create_engine(engine.url, echo=engine.echo, pool_pre_ping=engine.pool._pre_ping, connect_args=factory)
    event.listen(bounded, "connect", _limit_session)
    return bounded


def _limit_session(connection: Any, _record: object) -> None:
    """Set session limits. A database that only speaks PostgreSQL's protocol may not know them, and is used without."""
    cursor = connection.cursor()
    connection.autocommit = True
    try:
        cursor.execute(f"SET idle_in_transaction_session_timeout = {IDLE_IN_TRANSACTION_MS_MAX}")
        cursor.execute(f"SET lock_timeout = {LOCK_WAIT_MS_MAX}")
    except Exception as error:
        if not getattr(error, "pgcode", None):  # not an answer of the server
            raise
        _log.info("the catalog's database limits no idle transactions: %s", str(error).strip())
    finally:
        cursor.close()
    connection.autocommit = False


def _connection_class(answer_s_max: float) -> type:
    """Return a psycopg2 connection class with a limit on waiting for an answer, which psycopg2 lacks."""
    from psycopg2 import OperationalError, extensions

    @contextlib.contextmanager
    def limited(connection: Any) -> Iterator[None]:
        expired = threading.Event()
        timer = threading.Timer(answer_s_max, _cut, (connection.fileno(), expired))
        timer.daemon = True
        timer.start()
        try:
            yield
        except OperationalError as error:
            if expired.is_set():
                raise OperationalError(f"no answer within {answer_s_max:g} s") from error
            raise
        finally:
            timer.cancel()
            timer.join()  # otherwise it could cut the next user of the descriptor

    class LimitedCursor(extensions.cursor):  # type: ignore[misc]  # psycopg2 has no types
        def execute(self, *arguments: Any) -> None:
            with limited(self.connection):
                super().execute(*arguments)

        def executemany(self, *arguments: Any) -> None:
            with limited(self.connection):
                super().executemany(*arguments)

    class LimitedConnection(extensions.connection):  # type: ignore[misc]
        def cursor(self, *arguments: Any, **named: Any) -> Any:
            named.setdefault("cursor_factory", LimitedCursor)
            return super().cursor(*arguments, **named)

        def commit(self) -> None:
            with limited(self):
                super().commit()

        def rollback(self) -> None:
            with limited(self):
                super().rollback()

    return LimitedConnection


def _cut(descriptor: int, expired: threading.Event) -> None:
    """Shut the connection down, so that a blocked reader sees its end."""
    expired.set()
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        connection.shutdown(socket.SHUT_RDWR)
