"""Check that the lake is reachable, at startup and in `frazil doctor`, so that a wrong setting is reported early."""

from __future__ import annotations

import threading
import uuid

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO, load_file_io

from frazil.core.errors import LakeUnavailable
from frazil.core.settings import Settings
from frazil.core.settings.lake import CatalogType, ObjectStoreType
from frazil.lake.catalogs.error_text import reason
from frazil.lake.catalogs.opening import catalog_exists, catalog_properties, known_properties, open_catalog
from frazil.lake.files.object_store import store_root
from frazil.lake.files.store_errors import NOT_LET_IN, store_error

ASK_SECONDS_MAX = 5.0


def check_lake(settings: Settings) -> None:
    """Query the catalog and write one small object; raises `LakeUnavailable` that names the setting to fix."""
    catalog = _checked_catalog(settings)
    warehouse = catalog.properties.get("warehouse", "")
    if "://" in warehouse:
        _check_store(settings, load_file_io(dict(catalog.properties), warehouse), warehouse)
    elif settings.object_store.type not in (ObjectStoreType.LOCAL, ObjectStoreType.MEMORY):
        place = store_root(settings.object_store)
        _check_store(settings, load_file_io(dict(catalog_properties(settings)), place), place)


def probe_lake(settings: Settings, seconds_max: float = ASK_SECONDS_MAX) -> str:
    """Check that catalog and store answer, without changes; raises `LakeUnavailable` if they do not, or not in time.

    Returns a description of what was checked, for people.
    """
    if not catalog_exists(settings):
        return "an embedded catalog; the mover makes it"
    answers: list[str | LakeUnavailable] = []

    def ask() -> None:
        try:
            answers.append(_asked(settings))
        except LakeUnavailable as error:
            answers.append(error)

    asking = threading.Thread(target=ask, name="frazil-ask", daemon=True)
    asking.start()
    asking.join(seconds_max)
    if not answers:
        raise LakeUnavailable(
            "catalog", f"no answer within {seconds_max:g} s", "see whether the catalog and its store run"
        )
    answer = answers[0]
    if isinstance(answer, LakeUnavailable):
        raise answer
    return answer


def _asked(settings: Settings) -> str:
    """Ask the store for an object that does not exist: any answer proves that the store is reachable."""
    catalog = _checked_catalog(settings)
    text = f"the {settings.catalog.type.value} catalog answers"
    warehouse = catalog.properties.get("warehouse", "")
    if "://" not in warehouse or warehouse.startswith(("file:", "memory:")):
        return text
    try:
        load_file_io(dict(catalog.properties), warehouse).new_input(f"{warehouse.rstrip('/')}/.frazil-check").exists()
    except Exception as error:  # noqa: BLE001 - each library has its own; the message tells them apart
        raise store_error(error, warehouse, known_properties(settings)) from None
    return f"{text}, and its store"


def _checked_catalog(settings: Settings) -> Catalog:
    try:
        catalog = open_catalog(settings)
        catalog.list_namespaces()
    except LakeUnavailable as error:
        if error.__cause__ is None:  # no server was asked: the error names its own setting
            raise
        raise _catalog_error(settings, error.__cause__) from None
    except Exception as error:  # noqa: BLE001 - each library has its own; the message tells them apart
        raise _catalog_error(settings, error) from None
    return catalog


def _catalog_error(settings: Settings, error: BaseException) -> LakeUnavailable:
    why = reason(error, known_properties(settings))
    if NOT_LET_IN.search(f"{type(error).__name__} {error}"):
        setting = {
            CatalogType.REST: "catalog.credential",
            CatalogType.SQL: "catalog.uri",
            CatalogType.GLUE: "object_store.access_key_id",
        }.get(settings.catalog.type, "catalog.properties")
        return LakeUnavailable(setting, f"the catalog refuses the credentials ({why})", _CREDENTIALS[setting])
    setting = "catalog.name" if settings.catalog.type is CatalogType.NAMED else "catalog.uri"
    return LakeUnavailable(setting, f"the catalog cannot be reached ({why})", _ADDRESS[setting])


_CREDENTIALS = {
    "catalog.credential": "set catalog.credential to id:secret, or catalog.token, as the catalog's owner gave them",
    "catalog.uri": "fix the user and password in catalog.uri",
    "object_store.access_key_id": "set object_store.access_key_id and secret_access_key, or AWS's own variables",
    "catalog.properties": "fix the credentials where the catalog is defined",
}
_ADDRESS = {
    "catalog.uri": "start the catalog, or fix catalog.uri",
    "catalog.name": "define the catalog in .pyiceberg.yaml or by PYICEBERG_CATALOG__<NAME>__…, or fix catalog.name",
}


def _check_store(settings: Settings, io: FileIO, warehouse: str) -> None:
    """Write, read and delete an object, as a mover does."""
    place = f"{warehouse.rstrip('/')}/.frazil-check-{uuid.uuid4().hex}"
    try:
        with io.new_output(place).create(overwrite=True) as output:
            output.write(b"frazil")
        with io.new_input(place).open() as stored:
            stored.read()
        io.delete(place)
    except Exception as error:  # noqa: BLE001 - each library has its own; the message tells them apart
        raise store_error(error, warehouse, known_properties(settings)) from None
