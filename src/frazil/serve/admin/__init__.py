"""The admin door under `/v1`: one small router for each kind of thing. `add_admin` adds them all to an app.

What blocks (the log, tables, the store of schemas) runs in threads: such routes are plain functions. What is the
broker's runs on its loop, which is also that of the app: such routes are coroutines.
"""

from __future__ import annotations

from fastapi import FastAPI

from frazil.serve.admin.checks import checks_router
from frazil.serve.admin.dead_letters import dead_letters_router
from frazil.serve.admin.limits import LimitBodies
from frazil.serve.admin.maintenance import maintenance_router
from frazil.serve.admin.namespaces import namespaces_router
from frazil.serve.admin.openapi import say_how_it_is
from frazil.serve.admin.parts import AdminParts
from frazil.serve.admin.paths import KeepSlashes
from frazil.serve.admin.policies import policies_router
from frazil.serve.admin.schemas import schemas_router
from frazil.serve.admin.server import server_router
from frazil.serve.admin.subscriptions import subscriptions_router
from frazil.serve.admin.tables import tables_router
from frazil.serve.admin.topics import topics_router
from frazil.serve.admin.verify import verify_router


def add_admin(app: FastAPI, parts: AdminParts) -> None:
    for router in (topics_router, subscriptions_router, dead_letters_router, schemas_router, tables_router):
        app.include_router(router(parts))
    for router in (policies_router, namespaces_router, maintenance_router, verify_router, checks_router, server_router):
        app.include_router(router(parts))
    app.add_middleware(LimitBodies)
    app.add_middleware(KeepSlashes)
    say_how_it_is(app)
