"""Answers of the service, as types: the schemas of the contract with the fields that are read here.

A test compares them with contracts/profile.yaml.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

RunState = Literal["queued", "running", "succeeded", "partial", "failed", "cancelled"]


class StepRecord(TypedDict):
    """One step of a run."""

    step: str
    state: str
    started_at: str
    ended_at: str | None
    exit_code: int | None
    message: str | None


class Finding(TypedDict):
    """An observation with its evidence."""

    id: str
    severity: Literal["info", "warning", "critical"]
    message: str
    evidence: dict[str, str]
    advice: str | None


class DurationEstimate(TypedDict):
    """Expected duration of a run."""

    seconds: float | None
    unknown_because: str | None


class ExpectedRun(TypedDict):
    """The rest of an active run."""

    pending: list[str]
    duration: DurationEstimate


class RunView(TypedDict):
    """A run with its steps and findings."""

    run_id: str
    state: RunState
    owner: str | None
    name: str
    spec: dict[str, Any]
    queue_position: int | None
    queued_at: str
    started_at: str | None
    ended_at: str | None
    message: str | None
    steps: list[StepRecord]
    findings: list[Finding]
    expected: ExpectedRun | None


class RunSummary(TypedDict):
    """A run in a list."""

    run_id: str
    kind: str
    state: RunState
    owner: str | None
    name: str
    mode: str | None
    labels: list[str]
    revision: str | None
    device: str | None
    headline: dict[str, float | None] | None
    queued_at: str
    started_at: str | None
    ended_at: str | None


class RunList(TypedDict):
    """A page of runs."""

    runs: list[RunSummary]
    next_cursor: str | None


class SubmittedRun(TypedDict):
    """The answer to a submission."""

    run_id: str
    state: RunState
    queue_position: int | None


class TableHead(TypedDict):
    """A table without its rows."""

    name: str
    columns: list[str]
    total: int


class TableRows(TypedDict):
    """Rows of one table."""

    table: str
    columns: list[str]
    total: int
    rows: list[dict[str, Any]]


class ArtifactRecord(TypedDict):
    """A file of a run."""

    path: str
    bytes: int
    sha256: str
    media_type: str
