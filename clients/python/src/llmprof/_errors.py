"""Errors: one line that states what failed and what to do."""

from __future__ import annotations


class LlmprofError(Exception):
    """Any error of this package."""


class Unreachable(LlmprofError):
    """The service does not answer."""


class NotAService(LlmprofError):
    """The server at the URL does not answer like llmprof."""


class ApiError(LlmprofError):
    """The service refused a request."""

    def __init__(self, message: str, status: int, code: str, retry_after_s: float | None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s


class RunFailed(LlmprofError):
    """A run that was waited for failed or was cancelled."""

    def __init__(self, message: str, run_id: str, state: str) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.state = state
