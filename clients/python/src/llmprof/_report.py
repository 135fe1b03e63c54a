"""The report of a run, for notebooks and programs."""

from __future__ import annotations

import html
from functools import cached_property
from typing import Any

from ._http import Connection

HEIGHT_PX = 900


class Report:
    """The report of a run: displayed in a notebook, else `html`, `markdown` and `data`."""

    def __init__(self, connection: Connection, run_id: str) -> None:
        self._connection = connection
        self._path = f"/runs/{run_id}/report"

    @cached_property
    def html(self) -> str:
        """A complete document."""
        return self._text("text/html")

    @cached_property
    def markdown(self) -> str:
        return self._text("text/markdown")

    @cached_property
    def data(self) -> dict[str, Any]:
        """report.json."""
        headers = {"accept": "application/json"}
        data: dict[str, Any] = self._connection.json("GET", self._path, headers=headers)
        return data

    def _text(self, kind: str) -> str:
        return self._connection.send("GET", self._path, headers={"accept": kind}).text

    def _repr_html_(self) -> str:
        # A frame of its own keeps the styles of report and notebook apart; nothing in it may run.
        document = html.escape(self.html, quote=True)
        style = f"width:100%;height:{HEIGHT_PX}px;border:1px solid #8884;background:white"
        return f'<iframe sandbox="" srcdoc="{document}" style="{style}"></iframe>'

    def _repr_markdown_(self) -> str:
        return self.markdown

    def __repr__(self) -> str:
        return f"Report({self._path!r})"
