"""What the admin door gives of tables, of the pipeline and of proofs: the fields of the verbs' `--json`."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from frazil.serve.admin.job_models import JobModel, OfTopic
from frazil.serve.admin.paging import Page

# --- tables and the pipeline


class TopicStatus(BaseModel):
    """One topic; `table_end` is null as long as the table has none of its rows."""

    topic: str
    table: str
    log_end: int | None
    table_end: int | None
    lag_rows: int | None
    lag_bytes: int | None
    lag_ms: int | None
    committed_ms: int | None
    snapshot_id: int | None
    last_error: str | None


class PipelineStatus(BaseModel):
    """As `frazil pipeline status --json`, with the topics in pages."""

    mover: str
    mover_pid: int | None
    mover_host: str | None
    error: str | None
    maintenance: dict[str, Any] | None
    topics: list[TopicStatus]
    next: str | None = Field(description="for `after` of the next page of topics; null on the last one")


class TableSummary(BaseModel):
    """As `frazil table list --json`; `ends` says how far the table has each log."""

    table: str
    rows: int
    files: int
    bytes: int
    snapshots: int
    committed_ms: int | None
    ends: dict[str, int]


class TablePage(Page[TableSummary]):
    pass


class TableColumn(BaseModel):
    name: str
    type: str
    required: bool


class TableSnapshot(BaseModel):
    snapshot_id: int
    time_ms: int
    operation: str | None


class TablePartition(BaseModel):
    partition: str
    files: int
    rows: int
    bytes: int
    small_files: int
    small_bytes: int


class TableDescription(TableSummary):
    """As `frazil table describe --json`."""

    location: str
    columns: list[TableColumn]
    partitioning: str
    properties: dict[str, str]
    history: list[TableSnapshot]
    partitions: list[TablePartition]


# --- verify


class NewVerify(OfTopic):
    pass


class VerifyProblem(BaseModel):
    kind: str
    start: int
    end: int
    detail: str


class Proof(BaseModel):
    topic: str
    table: str
    proven: bool
    end: int
    in_table: int
    in_log: int
    checksums: int
    removed_by_retention: int
    accepted_gaps: list[tuple[int, int]]
    problems: list[VerifyProblem]


class VerifyResult(BaseModel):
    """As `frazil verify --json`."""

    proven: bool
    topics: list[Proof]


class VerifyJobModel(JobModel):
    rows: int = Field(description="looked at so far; rows of a table are looked at twice")
    result: VerifyResult | None


class VerifyJobPage(Page[VerifyJobModel]):
    pass
