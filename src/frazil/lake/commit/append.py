"""The snapshot that adds files: each under the partition spec it was written with, and the paths written for it.

PyIceberg lists all added files under the table's current spec. Another engine may have changed the spec since the files
were written; their partition values would then be under the wrong fields, and filters would miss their rows.

Two more things differ from PyIceberg, because its cost grows with the table's history:

    copies     PyIceberg copies the whole metadata at each access, twenty times in a commit; nothing here changes it
    manifests  PyIceberg merges all small manifests into one that grows up to 8 MiB, and rewrites it every few
               commits; here only manifests of similar size are merged, as in a log-structured merge tree
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate

from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, SnapshotSummaryCollector, Summary, update_snapshot_summaries
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.utils.properties import property_as_int

from frazil.lake.pyiceberg_private import MergeAppendFiles, merged_manifest

MERGE_WIDTH_MIN = 2


class _ReadOnlyTransaction(Transaction):
    """A transaction without staged changes, so that the table's metadata can be used without a copy."""

    @property
    def table_metadata(self) -> TableMetadata:
        assert not self._updates
        return self._table.metadata


class Append(MergeAppendFiles):
    def __init__(self, table: Table, files: list[DataFile], snapshot_properties: dict[str, str]) -> None:
        transaction = _ReadOnlyTransaction(table)
        super().__init__(Operation.APPEND, transaction, table.io, snapshot_properties=snapshot_properties)
        self._added_data_files = list(files)
        self._used: set[str] = set()

    @property
    def written(self) -> list[str]:
        """All manifests and manifest lists that this attempt has written."""
        return [*self._written_manifests, *self._written_manifest_lists]

    @property
    def merged_away(self) -> list[str]:
        """Those of `written` that its own snapshot does not need."""
        return [path for path in self._written_manifests if path not in self._used]

    def as_updates(self) -> tuple[tuple[TableUpdate, ...], tuple[TableRequirement, ...]]:
        """What `commit()` would send, without its rebasing and retrying."""
        return self._commit()

    def _manifests(self) -> list[ManifestFile]:
        by_spec: dict[int, list[DataFile]] = defaultdict(list)
        for file in self._added_data_files:
            by_spec[file.spec_id].append(file)
        added = [self._added(spec_id, files) for spec_id, files in by_spec.items()]
        manifests = self._process_manifests([*added, *self._existing_manifests()])
        self._used = {manifest.manifest_path for manifest in manifests}
        return manifests

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        """Merge manifests of one size class once there are `commit.manifest.min-count-to-merge` of them."""
        if not self._merge_enabled:
            return manifests
        for spec_id, group in _mergeable(manifests, self._min_count_to_merge, self._target_size_bytes):
            merged = merged_manifest(self, spec_id, group)
            paths = {manifest.manifest_path for manifest in group}
            manifests = [merged, *(each for each in manifests if each.manifest_path not in paths)]
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


def _mergeable(
    manifests: Sequence[ManifestFile], min_count_to_merge: int, bytes_max: int
) -> list[tuple[int, list[ManifestFile]]]:
    """Return groups of manifests to merge, each with its partition spec.

    A merged manifest falls into the next size class, so that each entry is rewritten a logarithmic number of times and
    the number of manifests grows with the logarithm of the number of files.
    """
    width = max(MERGE_WIDTH_MIN, min_count_to_merge)
    classes: dict[tuple[int, int], list[ManifestFile]] = defaultdict(list)
    for manifest in manifests:
        if manifest.content == ManifestContent.DATA and manifest.manifest_length < bytes_max:
            classes[manifest.partition_spec_id, _size_class(manifest, width)].append(manifest)
    groups = []
    for (spec_id, _), members in classes.items():
        fitting = [
            member
            for member, total in zip(members, accumulate(each.manifest_length for each in members), strict=True)
            if total <= bytes_max
        ]
        if len(members) >= width and len(fitting) > 1:
            groups.append((spec_id, fitting))
    return groups


def _size_class(manifest: ManifestFile, width: int) -> int:
    """The logarithm of the number of files, to the base `width`."""
    files = (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
    number = 0
    while files >= width:
        files //= width
        number += 1
    return number
