"""All tables of a catalog, also in namespaces whose names have dots in them.

A topic's namespace is one level to us, whatever is in its name. A SQL catalog keeps a namespace as text with its levels
joined by dots, so PyIceberg and Iceberg's Java library both see `shop.eu` as two levels.
"""

from __future__ import annotations

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from sqlalchemy import select
from sqlalchemy.orm import Session

from frazil.core.lake_settings import CatalogType
from frazil.lake.tables import TableName


def table_names(catalog: Catalog) -> list[TableName]:
    """Sorted. Tables in nested namespaces of other catalogs are no topics' tables and are left out."""
    return sorted(
        TableName(namespace, identifier[-1])
        for namespace in _namespaces(catalog)
        for identifier in catalog.list_tables((namespace,))
    )


def spark_name(name: TableName, kind: CatalogType) -> str:
    """The table as Spark's SQL names it."""
    levels = name.namespace.split(".") if kind is CatalogType.SQL else [name.namespace]
    return ".".join(f"`{level}`" for level in (*levels, name.table))


def _namespaces(catalog: Catalog) -> list[str]:
    if not isinstance(catalog, SqlCatalog):
        return [namespace[0] for namespace in catalog.list_namespaces() if len(namespace) == 1]
    named = select(IcebergTables.table_namespace).where(IcebergTables.catalog_name == catalog.name).distinct()
    with Session(catalog.engine) as session:
        return list(session.execute(named).scalars())
