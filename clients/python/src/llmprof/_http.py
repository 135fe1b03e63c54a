"""Requests to one service, with its errors as exceptions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from ._errors import ApiError, LlmprofError, NotAService, Unreachable

VERSION = "0.1.0"
CREATE = "create one by `llmprof token create` on the service's host"
# The server needs time for a large table; a silent connection is cut.
TIMEOUT = httpx.Timeout(60, connect=10)
EXPECTED_URL = "expected a URL such as http://127.0.0.1:8080"

Query = Mapping[str, str | int | list[str]]


class Connection:
    """A service by its URL, with the caller's token."""

    def __init__(
        self, url: str | None, token: str | None, transport: httpx.BaseTransport | None = None
    ) -> None:
        self.url = (url or os.environ.get("LLMPROF_SERVER") or "http://127.0.0.1:8080").rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise LlmprofError(f"invalid URL {self.url!r}; {EXPECTED_URL}")
        self.token = token or os.environ.get("LLMPROF_TOKEN") or None
        headers = {"user-agent": f"llmprof-client/{VERSION}"}
        if self.token:
            headers["authorization"] = f"Bearer {self.token}"
        self.http = httpx.Client(headers=headers, timeout=TIMEOUT, transport=transport)

    def json(self, method: str, path: str, **options: Any) -> Any:
        """Sends a request that is answered with JSON."""
        response = self.send(method, path, **options)
        try:
            return response.json()
        except ValueError:
            raise self.foreign(path, response) from None

    def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Sends a request; raises the error of an unsuccessful response."""
        try:
            response = self.http.request(method, self.url + path, **options)
        except httpx.HTTPError as error:
            raise self.unreachable(error) from error
        except httpx.InvalidURL as error:
            raise LlmprofError(f"invalid URL {self.url!r}: {error}; {EXPECTED_URL}") from error
        self.check(path, response)
        return response

    @contextmanager
    def stream(self, path: str, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
        """Opens a response whose body is read in pieces."""
        try:
            with self.http.stream("GET", self.url + path, headers=dict(headers)) as response:
                if not response.is_success:
                    response.read()
                self.check(path, response)
                yield response
        except httpx.HTTPError as error:
            raise self.unreachable(error) from error

    def unreachable(self, error: Exception) -> Unreachable:
        """The error of a request without an answer."""
        reason = str(error) or type(error).__name__
        return Unreachable(
            f"no answer from {self.url}: {reason}; check the URL, and that `llmprof serve` runs"
        )

    def foreign(self, path: str, response: httpx.Response) -> NotAService:
        """The error of a server that is not llmprof."""
        kind = response.headers.get("content-type", "no content type").split(";")[0]
        return NotAService(
            f"{self.url} is not an llmprof service: {path} was answered "
            f"{response.status_code} with {kind}; check the URL"
        )

    def check(self, path: str, response: httpx.Response) -> None:
        """Raises the error of an unsuccessful response."""
        if response.is_success:
            return
        if response.is_redirect:
            to = response.headers.get("location", "an unknown address").removesuffix(path)
            raise NotAService(f"{self.url} redirects to {to}; use that URL")
        try:
            detail = response.json()["error"]
            code, message = str(detail["code"]), str(detail["message"])
        except (ValueError, KeyError, TypeError):
            if response.status_code in (502, 503, 504):
                message = (
                    f"a proxy in front of {self.url} answered {response.status_code}; "
                    "check that the service runs, and retry"
                )
                raise Unreachable(message) from None
            raise self.foreign(path, response) from None
        wait = response.headers.get("retry-after", "")
        retry_after_s = float(wait) if wait.isdigit() else None
        if response.status_code == 401 and self.token:
            message = f"{self.url} refused the token: {message}; {CREATE}"
        elif response.status_code == 401:
            message = f"{self.url} requires a token: set LLMPROF_TOKEN or `token`; {CREATE}"
        elif code in ("route_not_found", "method_not_allowed", "invalid_request"):
            message += self.other_version()
        raise ApiError(message, response.status_code, code, retry_after_s)

    def other_version(self) -> str:
        """The versions of service and client, if they differ."""
        try:
            version = self.http.get(self.url + "/version").json()["version"]
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return ""
        if version == VERSION:
            return ""
        return f"; the service is llmprof {version}, this is {VERSION}: use the same version"
