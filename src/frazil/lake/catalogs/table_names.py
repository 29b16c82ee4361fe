"""List all tables of a catalog, including those in namespaces with dots in their names.

A topic's namespace is one level, whatever its name contains. A SQL catalog stores a namespace as text with its levels
joined by dots, so PyIceberg and Iceberg's Java library both read `shop.eu` as two levels.
"""

from __future__ import annotations

from collections.abc import Callable

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from sqlalchemy import select
from sqlalchemy.orm import Session

from frazil.core.settings.lake import CatalogType
from frazil.lake.tables.schema import TableName


def table_names(catalog: Catalog, wanted: Callable[[str], bool] = lambda _: True) -> list[TableName]:
    """Return the names in wanted namespaces, sorted. Tables in nested namespaces of other catalogs belong to no topic
    and are left out."""
    return sorted(
        TableName(namespace, identifier[-1])
        for namespace in namespace_names(catalog)
        if wanted(namespace)
        for identifier in catalog.list_tables((namespace,))
    )


def spark_name(name: TableName, kind: CatalogType) -> str:
    """Return the table's name in Spark SQL."""
    levels = name.namespace.split(".") if kind is CatalogType.SQL else [name.namespace]
    return ".".join(f"`{level}`" for level in (*levels, name.table))


def namespace_names(catalog: Catalog) -> list[str]:
    """Return the namespaces that may have tables of topics; of an SQL catalog, those that have any table."""
    if not isinstance(catalog, SqlCatalog):
        return [namespace[0] for namespace in catalog.list_namespaces() if len(namespace) == 1]
    named = select(IcebergTables.table_namespace).where(IcebergTables.catalog_name == catalog.name).distinct()
    with Session(catalog.engine) as session:
        return list(session.execute(named).scalars())
