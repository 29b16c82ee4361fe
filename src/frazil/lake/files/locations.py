"""Locations of a table's data files: PyIceberg's layout, with folder names that every store accepts.

A partition's folder is named after its value, which may have any length. File systems accept names of at most 255
bytes, S3 keys of at most 1,024. Readers use the metadata, never the names.
"""

from __future__ import annotations

import hashlib

from pyiceberg.partitioning import PartitionKey
from pyiceberg.table import TableProperties
from pyiceberg.table.locations import LocationProvider, load_location_provider
from pyiceberg.typedef import Properties

IMPLEMENTATION = "frazil.lake.files.locations.ShortLocations"
NAME_BYTES_MAX = 200
PATH_BYTES_MAX = 600
_KEPT = 100


class ShortLocations(LocationProvider):
    """PyIceberg creates it by name, in the tasks that write files."""

    def __init__(self, table_location: str, table_properties: Properties) -> None:
        super().__init__(table_location, table_properties)
        others = {name: value for name, value in table_properties.items() if value != IMPLEMENTATION}
        self._usual = load_location_provider(table_location, others)

    def new_data_location(self, data_file_name: str, partition_key: PartitionKey | None = None) -> str:
        if partition_key is not None:
            partition_key = _ShortKey(partition_key.field_values, partition_key.partition_spec, partition_key.schema)
        return self._usual.new_data_location(data_file_name, partition_key)


class _ShortKey(PartitionKey):
    def to_path(self) -> str:
        return short_path(super().to_path())


def short_path(path: str) -> str:
    """Return the path unchanged, or with a hash for each part that is too long. Partition values are already ASCII."""
    short = "/".join(_short(name, NAME_BYTES_MAX) for name in path.split("/"))
    return short if len(short.encode()) <= PATH_BYTES_MAX else _short(path.replace("/", "-"), NAME_BYTES_MAX)


def _short(name: str, bytes_max: int) -> str:
    if len(name.encode()) <= bytes_max:
        return name
    return f"{name.encode()[:_KEPT].decode(errors='ignore')}-{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def with_short_locations(properties: dict[str, str]) -> dict[str, str]:
    """Return a table's properties for writers; a provider set by someone else stays."""
    return {TableProperties.WRITE_PY_LOCATION_PROVIDER_IMPL: IMPLEMENTATION, **properties}
