"""A plan for a task: everything needed to read files of a table without its catalog or manifests.

It includes only the file metadata that readers use, so that a task of many files stays small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import load_file_io
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.metadata import TableMetadataUtil

from frazil.core.offsets import OffsetRange
from frazil.core.rows import OFFSET
from frazil.lake.files.writer import metadata_for_tasks
from frazil.lake.read.history import Plan
from frazil.lake.read.offset_files import OffsetFile
from frazil.lake.tables.schema import PARTITION


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """It contains secrets: send it to tasks, never to a log."""

    identifier: tuple[str, ...]
    metadata: str
    io_properties: dict[str, str] = field(repr=False)
    files: tuple[OffsetFile, ...]
    wanted: OffsetRange
    gaps: tuple[OffsetRange, ...]

    def unpacked(self) -> Plan:
        metadata = TableMetadataUtil.parse_raw(self.metadata)
        io = load_file_io(dict(self.io_properties), metadata.location)
        table = Table(self.identifier, metadata, "", io, NoopCatalog("carried"))
        return Plan(table, list(self.files), self.wanted, list(self.gaps))


class TaskPlanner:
    """A plan that is split among tasks."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._files = _slim(plan)
        self._metadata = "" if self._files is None else metadata_for_tasks(plan.table.metadata, every_spec=True)
        properties = plan.table.io.properties
        self._io_properties = {name: value for name, value in properties.items() if not name.startswith("frazil.")}

    def part(self, wanted: OffsetRange) -> TaskPlan | None:
        """Return the part for these offsets; None if the task must plan them itself."""
        if self._files is None:
            return None
        files = tuple(file for file in self._files if file.low < wanted.end and wanted.start < file.high)
        gaps = tuple(gap for gap in self._plan.gaps if gap.start < wanted.end and wanted.start < gap.end)
        return TaskPlan(self._plan.table.name(), self._metadata, self._io_properties, files, wanted, gaps)


def _slim(plan: Plan) -> Sequence[OffsetFile] | None:
    """Keep only the file metadata that `FileRows` needs. Deleted rows are rare: tasks with such files plan again."""
    schema = plan.table.schema()
    kept = [schema.find_field(name).field_id for name in (OFFSET.name, PARTITION.name)]
    found = []
    for file in plan.files:
        whole = file.task.file
        if file.task.delete_files or whole.file_format is not FileFormat.PARQUET:
            return None
        slim = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=whole.file_path,
            file_format=whole.file_format,
            partition=whole.partition,
            record_count=whole.record_count,
            file_size_in_bytes=whole.file_size_in_bytes,
            lower_bounds=_some(whole.lower_bounds, kept),
            upper_bounds=_some(whole.upper_bounds, kept),
        )
        slim.spec_id = whole.spec_id
        found.append(OffsetFile(file.low, file.high, FileScanTask(slim)))
    return found


def _some(values: dict[int, bytes] | None, kept: Sequence[int]) -> dict[int, bytes]:
    return {number: values[number] for number in kept if values is not None and number in values}
