"""A run of the service."""

from __future__ import annotations

import hashlib
import html
import sys
import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, overload
from urllib.parse import quote

from ._answers import ArtifactRecord, Finding, RunView, StepRecord, TableHead, TableRows
from ._errors import LlmprofError, RunFailed, Unreachable
from ._events import updates
from ._frames import Library, installed, to_pandas, to_polars
from ._http import Connection
from ._report import Report

if TYPE_CHECKING:
    import pandas
    import polars


class Run:
    """A run by its id. `view` has all fields of the last answer, `refresh()` asks again."""

    def __init__(self, connection: Connection, run_id: str) -> None:
        self._connection = connection
        self.id = run_id
        self._path = f"/runs/{quote(run_id, safe='')}"
        self.view: RunView = connection.json("GET", self._path)

    def refresh(self) -> Run:
        """Requests the run again."""
        self.view = self._connection.json("GET", self._path)
        return self

    @property
    def state(self) -> str:
        return self.view["state"]

    @property
    def has_ended(self) -> bool:
        return self.view["ended_at"] is not None

    @property
    def steps(self) -> list[StepRecord]:
        return self.view["steps"]

    @property
    def findings(self) -> list[Finding]:
        return self.view["findings"]

    @property
    def page(self) -> str:
        """The run's page in a browser."""
        return f"{self._connection.url}/ui/runs/{self.id}"

    def events(self) -> Iterator[dict[str, Any]]:
        """The events of the run until it ends; a stream that is cut is resumed."""
        return (event for event in updates(self._connection, self.id) if event is not None)

    def wait(self, timeout_s: float | None = None, *, progress: bool = True) -> Run:
        """Waits for the end of the run. Raises RunFailed if it failed or was cancelled."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        for event in updates(self._connection, self.id):
            if progress and event and event.get("event") == "step" and event["step"]["ended_at"]:
                step = event["step"]
                print(f"{step['step']}: {step['state']}", file=sys.stderr)
            if until is not None and time.monotonic() > until:
                message = f"run {self.id} has not ended after {timeout_s} s; it continues"
                raise TimeoutError(message)
        self.refresh()
        if self.state in ("failed", "cancelled"):
            reason = self.view["message"] or f"see {self.page}"
            raise RunFailed(f"run {self.id} {self.state}: {reason}", self.id, self.state)
        return self

    def cancel(self) -> Run:
        """Ends a queued or running run."""
        self.view = self._connection.json("POST", f"{self._path}/cancel")
        return self

    def delete(self) -> None:
        """Deletes an ended run with its files."""
        self._connection.send("DELETE", self._path)

    def tables(self) -> list[TableHead]:
        """The tables of the run, without rows."""
        tables: list[TableHead] = self._connection.json("GET", f"{self._path}/tables")["tables"]
        return tables

    def rows(
        self,
        table: str,
        *,
        where: Sequence[str] = (),
        text: str | None = None,
        sort: str | None = None,
        limit: int | None = None,
    ) -> list[dict[str, Any]]:
        """Rows of a table, as dictionaries.

        A filter of `where` is COLUMN=VALUE, COLUMN!=VALUE, COLUMN~TEXT or COLUMN=MIN..MAX.
        """
        return self._rows(table, where, text, sort, limit)["rows"]

    @overload
    def table(
        self,
        table: str,
        frame: Literal["pandas"] | None = None,
        *,
        where: Sequence[str] = (),
        text: str | None = None,
        sort: str | None = None,
        limit: int | None = None,
    ) -> pandas.DataFrame: ...

    @overload
    def table(
        self,
        table: str,
        frame: Literal["polars"],
        *,
        where: Sequence[str] = (),
        text: str | None = None,
        sort: str | None = None,
        limit: int | None = None,
    ) -> polars.DataFrame: ...

    def table(
        self,
        table: str,
        frame: Library | None = None,
        *,
        where: Sequence[str] = (),
        text: str | None = None,
        sort: str | None = None,
        limit: int | None = None,
    ) -> pandas.DataFrame | polars.DataFrame:
        """Rows of a table as a DataFrame: of `frame`, else of pandas, or polars without it."""
        library = frame or installed()
        rows = self._rows(table, where, text, sort, limit)
        return to_pandas(rows) if library == "pandas" else to_polars(rows)

    def _rows(
        self,
        table: str,
        where: Sequence[str],
        text: str | None,
        sort: str | None,
        limit: int | None,
    ) -> TableRows:
        query: dict[str, Any] = {"where": list(where), "q": text, "sort": sort, "limit": limit}
        params = {name: value for name, value in query.items() if value not in (None, [])}
        path = f"{self._path}/tables/{quote(table, safe='')}"
        headers = {"accept": "application/json"}
        rows: TableRows = self._connection.json("GET", path, params=params, headers=headers)
        return rows

    def report(self) -> Report:
        """The report, which a notebook displays."""
        return Report(self._connection, self.id)

    def files(self) -> list[ArtifactRecord]:
        """The files of the run; none before it ends."""
        answer = self._connection.json("GET", f"{self._path}/artifacts")
        files: list[ArtifactRecord] = answer["artifacts"]
        return files

    def fetch(self, into: str | Path | None = None, *patterns: str) -> list[Path]:
        """Downloads files into a folder, resumes earlier downloads, and verifies SHA-256.

        All files without `patterns`, such as "report.*". The folder is the run's id when absent.
        """
        folder = Path(into) if into is not None else Path(self.id)
        fetched = []
        for file in self.files():
            if not patterns or any(fnmatchcase(file["path"], pattern) for pattern in patterns):
                fetched.append(self._download(file, folder))
        if not fetched:
            raise LlmprofError(f"run {self.id} has no such file; files() lists them when it ended")
        return fetched

    def _download(self, file: ArtifactRecord, folder: Path) -> Path:
        parts = PurePosixPath(file["path"]).parts
        if not parts or any(part in ("..", "/") for part in parts):
            raise LlmprofError(f"the service lists a file outside its folder: {file['path']!r}")
        to = folder.joinpath(*parts)
        if to.is_file() and _sha256(to) == file["sha256"]:
            return to
        to.parent.mkdir(parents=True, exist_ok=True)
        part = to.with_name(to.name + ".part")
        for attempt in range(3):
            try:
                self._rest(file, part)
            except Unreachable:
                if attempt == 2:
                    raise
                continue
            if _sha256(part) == file["sha256"]:
                part.replace(to)
                return to
            part.unlink()
        raise LlmprofError(f"{file['path']} differs from its SHA-256 on the service")

    def _rest(self, file: ArtifactRecord, part: Path) -> None:
        """Downloads the bytes that `part` lacks."""
        have = part.stat().st_size if part.exists() else 0
        if have > file["bytes"]:
            have = 0
        if have == file["bytes"] and part.exists():
            return
        # Compressed bytes have no offsets in the file.
        headers = {"accept-encoding": "identity"}
        if have:
            headers |= {"range": f"bytes={have}-", "if-range": f'"{file["sha256"]}"'}
        path = f"{self._path}/artifacts/{quote(file['path'])}"
        with self._connection.stream(path, headers) as response:
            mode = "ab" if response.status_code == 206 else "wb"
            with part.open(mode) as to:
                for block in response.iter_bytes():
                    to.write(block)

    def __repr__(self) -> str:
        return f"Run({self.id!r}, name={self.view['name']!r}, state={self.state!r})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(step['step'])}</td><td>{html.escape(step['state'])}</td>"
            f"<td>{html.escape(step['message'] or '')}</td></tr>"
            for step in self.steps
        )
        link = f'<a href="{html.escape(self.page, quote=True)}">{html.escape(self.id)}</a>'
        head = f"{html.escape(self.view['name'])}: {html.escape(self.state)}"
        return f"<p>{head} ({link})</p><table>{rows}</table>"


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
