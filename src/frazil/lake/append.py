"""The snapshot that adds files: each by the partition spec that it was written by, and the paths of what was written.

PyIceberg lists all added files by the table's spec of now. Another engine may have changed that since the files were
written; their partition values would then stand under the wrong fields, and filters would miss their rows.
"""

from __future__ import annotations

from collections import defaultdict

from pyiceberg.manifest import DataFile, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.snapshots import Operation, SnapshotSummaryCollector, Summary, update_snapshot_summaries
from pyiceberg.table.update.snapshot import _MergeAppendFiles
from pyiceberg.utils.properties import property_as_int


class Append(_MergeAppendFiles):
    def __init__(self, table: Table, files: list[DataFile], snapshot_properties: dict[str, str]) -> None:
        super().__init__(Operation.APPEND, table.transaction(), table.io, snapshot_properties=snapshot_properties)
        self._added_data_files = list(files)
        self._used: set[str] = set()

    @property
    def written(self) -> list[str]:
        """All manifests and manifest lists that this try has written."""
        return [*self._written_manifests, *self._written_manifest_lists]

    @property
    def merged_away(self) -> list[str]:
        """Those of `written` that its own snapshot does not need."""
        return [path for path in self._written_manifests if path not in self._used]

    def _manifests(self) -> list[ManifestFile]:
        by_spec: dict[int, list[DataFile]] = defaultdict(list)
        for file in self._added_data_files:
            by_spec[file.spec_id].append(file)
        added = [self._added(spec_id, files) for spec_id, files in by_spec.items()]
        manifests = self._process_manifests([*added, *self._existing_manifests()])
        self._used = {manifest.manifest_path for manifest in manifests}
        return manifests

    def _added(self, spec_id: int, files: list[DataFile]) -> ManifestFile:
        with self.new_manifest_writer(self.spec(spec_id)) as writer:
            for file in files:
                writer.add(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED,
                        snapshot_id=self._snapshot_id,
                        sequence_number=None,
                        file_sequence_number=None,
                        data_file=file,
                    )
                )
        return writer.to_manifest_file()

    def _summary(self, snapshot_properties: dict[str, str] | None = None) -> Summary:
        metadata = self._transaction.table_metadata
        limit = property_as_int(metadata.properties, TableProperties.WRITE_PARTITION_SUMMARY_LIMIT, 0)
        counts = SnapshotSummaryCollector(partition_summary_limit=limit or 0)
        for file in self._added_data_files:
            counts.add_file(file, metadata.schema(), self.spec(file.spec_id))
        parent = None if self._parent_snapshot_id is None else metadata.snapshot_by_id(self._parent_snapshot_id)
        return update_snapshot_summaries(
            Summary(Operation.APPEND, **counts.build(), **(snapshot_properties or {})),
            previous_summary=None if parent is None else parent.summary,
        )
