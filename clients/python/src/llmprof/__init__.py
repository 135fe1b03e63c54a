"""Client of an llmprof service: submit runs, wait for them, read tables and reports."""

from ._answers import ArtifactRecord, Finding, RunSummary, RunView, StepRecord, TableHead
from ._client import Client
from ._errors import ApiError, LlmprofError, NotAService, RunFailed, Unreachable
from ._report import Report
from ._run import Run

__all__ = [
    "ApiError",
    "ArtifactRecord",
    "Client",
    "Finding",
    "LlmprofError",
    "NotAService",
    "Report",
    "Run",
    "RunFailed",
    "RunSummary",
    "RunView",
    "StepRecord",
    "TableHead",
    "Unreachable",
]
__version__ = "0.1.0"
