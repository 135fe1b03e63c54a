"""The client of a service."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from ._answers import RunList, RunSummary, SubmittedRun
from ._errors import LlmprofError, Unreachable
from ._http import TIMEOUT, Connection
from ._run import Run


class Client:
    """A service by its URL (else LLMPROF_SERVER), with a token (else LLMPROF_TOKEN)."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._connection = Connection(url, token, transport)

    @property
    def url(self) -> str:
        return self._connection.url

    def version(self) -> str:
        """The version of the service."""
        return str(self._connection.json("GET", "/version")["version"])

    def models(self) -> list[str]:
        """The names of the models that a run may name."""
        return [model["name"] for model in self._connection.json("GET", "/models")["models"]]

    def submit(
        self,
        model: str | None = None,
        *,
        command: str | None = None,
        params: Mapping[str, bool | int | float | str] | None = None,
        part: str | None = None,
        mode: str | None = None,
        repeats: int | None = None,
        warmup: int | None = None,
        max_new_tokens: int | None = None,
        batch: int | None = None,
        device: str | None = None,
        inputs: str | Mapping[str, Any] | None = None,
        labels: Sequence[str] | None = None,
        revision: str | None = None,
        profiling: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Run:
        """Queues a run of a model, of a part of one, or of a command that the service allows.

        `fields`: others of `POST /runs`. The run is on the service's disk when this returns.
        """
        if (model is None) == (command is None):
            raise LlmprofError("expected a model or a command")
        target: Any = part
        if command is not None:
            target = {"command": command, "params": dict(params or {})}
        body = {
            "model": model,
            "target": target,
            "mode": mode,
            "repeats": repeats,
            "warmup": warmup,
            "max_new_tokens": max_new_tokens,
            "batch": batch,
            "device": device,
            "inputs": inputs,
            "labels": None if labels is None else list(labels),
            "revision": revision,
            "profiling": profiling,
            **fields,
        }
        body = {name: value for name, value in body.items() if value is not None}
        key = {"idempotency-key": str(uuid.uuid4())}
        try:
            answer = self._connection.json("POST", "/runs", json=body, headers=key)
        except Unreachable as error:
            if isinstance(error.__cause__, (httpx.ConnectError, httpx.ConnectTimeout)):
                raise
            # The answer was lost; the key identifies the run if it was queued.
            answer = self._connection.json("POST", "/runs", json=body, headers=key)
        return self._submitted(answer)

    def upload(
        self,
        *files: str | Path,
        model: str | None = None,
        labels: Sequence[str] = (),
        stages: Sequence[str] = (),
        include_ranges: Sequence[str] = (),
        exclude_ranges: Sequence[str] = (),
        **fields: str | int,
    ) -> Run:
        """Imports captures of one program. `fields`: others of `POST /captures`."""
        if not files:
            raise LlmprofError("expected a file")
        data: dict[str, Any] = {
            "model": model,
            "label": list(labels),
            "stage": list(stages),
            "include_ranges": list(include_ranges),
            "exclude_ranges": list(exclude_ranges),
            **{name: str(value) for name, value in fields.items()},
        }
        data = {name: value for name, value in data.items() if value}
        key = {"idempotency-key": str(uuid.uuid4())}
        with ExitStack() as stack:
            try:
                opened = [stack.enter_context(open(path, "rb")) for path in files]
            except OSError as error:
                raise LlmprofError(f"cannot read {error.filename}: {error.strerror}") from error
            parts = [
                ("file", (Path(path).name, file)) for path, file in zip(files, opened, strict=True)
            ]
            # The service inspects the files before it answers.
            timeout = httpx.Timeout(TIMEOUT, read=None, write=None)
            answer = self._connection.json(
                "POST", "/captures", data=data, files=parts, headers=key, timeout=timeout
            )
        return self._submitted(answer)

    def _submitted(self, answer: SubmittedRun) -> Run:
        if "run_id" not in answer:
            raise LlmprofError("nothing was queued: the submission was only checked (dry_run)")
        return Run(self._connection, answer["run_id"])

    def run(self, run_id: str) -> Run:
        """Finds a run."""
        return Run(self._connection, run_id)

    def runs(self, *, limit: int | None = None, **filters: str) -> Iterator[RunSummary]:
        """Lists runs, newest first. `filters`: state, name, label and others of `GET /runs`."""
        query: dict[str, str | int] = {**filters, "limit": min(limit or 200, 200)}
        found = 0
        while True:
            page: RunList = self._connection.json("GET", "/runs", params=query)
            for run in page["runs"]:
                if limit is not None and found >= limit:
                    return
                found += 1
                yield run
            if not page["next_cursor"]:
                return
            query["cursor"] = page["next_cursor"]

    def close(self) -> None:
        """Closes the connections."""
        self._connection.http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.url!r})"
