"""The admin API under `/v1`: one small router for each kind of resource. `add_admin` adds them all to an app.

Routes that block (the log, tables, the schema store) are plain functions and run in threads. Routes of the broker are
coroutines on its loop, which is also that of the app.
"""

from __future__ import annotations

from fastapi import FastAPI

from frazil.doors.http.admin.bindings import bindings_router
from frazil.doors.http.admin.cluster.routes import cluster_router, owners_router
from frazil.doors.http.admin.dead_letters import dead_letters_router
from frazil.doors.http.admin.jobs.checks import checks_router
from frazil.doors.http.admin.jobs.maintenance import maintenance_router
from frazil.doors.http.admin.jobs.verify import verify_router
from frazil.doors.http.admin.keys import keys_router
from frazil.doors.http.admin.limits import LimitBodies
from frazil.doors.http.admin.namespaces import namespaces_router
from frazil.doors.http.admin.openapi import say_how_it_is
from frazil.doors.http.admin.paths import KeepSlashes
from frazil.doors.http.admin.policies import policies_router
from frazil.doors.http.admin.roles import roles_router
from frazil.doors.http.admin.schemas import schemas_router
from frazil.doors.http.admin.server import server_router
from frazil.doors.http.admin.subscriptions import subscriptions_router
from frazil.doors.http.admin.tables import tables_router
from frazil.doors.http.admin.tenants.routes import tenants_router
from frazil.doors.http.admin.topics import topics_router
from frazil.doors.http.admin.whoami import whoami_router
from frazil.node.node import Node


def add_admin(app: FastAPI, node: Node) -> None:
    for router in (topics_router, subscriptions_router, dead_letters_router, schemas_router, tables_router):
        app.router.routes.extend(router(node).routes)
    for router in (policies_router, namespaces_router, maintenance_router, verify_router, checks_router, server_router):
        app.router.routes.extend(router(node).routes)
    for router in (keys_router, roles_router, bindings_router, whoami_router, cluster_router, owners_router):
        app.router.routes.extend(router(node).routes)
    app.router.routes.extend(tenants_router(node).routes)
    app.add_middleware(LimitBodies)
    app.add_middleware(KeepSlashes)
    say_how_it_is(app)
