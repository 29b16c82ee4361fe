"""The catalog in a data folder: a copy of the folder must not change the tables of the original.

A copied folder has a copy of the catalog, which names the files of the original by absolute path. Two catalogs that
commit to one table, or clean up after it, delete files that the other needs. So a catalog in a data folder changes no
table in another data folder that has its own catalog; reading is allowed.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from frazil.core.errors import TableRefused
from frazil.lake.catalogs.sql import SharedSqlCatalog


class EmbeddedCatalog(SharedSqlCatalog):
    """A catalog, and the file it is in."""

    path: Path | None = None


def check_own(catalog: Catalog, table: Table) -> None:
    """Raise `TableRefused` if a table of an embedded catalog is in another data folder."""
    own = catalog.path if isinstance(catalog, EmbeddedCatalog) else None
    parts = urlsplit(table.location())
    if own is None or parts.scheme not in ("", "file"):
        return
    place = Path(unquote(parts.path))
    for warehouse in place.parents:
        other = warehouse.parent / own.name
        if warehouse.name == "warehouse" and other.exists() and not other.samefile(own):
            raise _refused(".".join(table.name()), own.parent, other.parent)


def _refused(name: str, own: Path, other: Path) -> TableRefused:
    return TableRefused(
        f"{name} is a table of the data folder {other}, of which {own} is a copy: two catalogs can't share a table, so "
        f"nothing is moved or removed here; remove {own}/catalog.db, and the rows that the copy's log has are moved to "
        "a table of its own",
        table=name,
    )
