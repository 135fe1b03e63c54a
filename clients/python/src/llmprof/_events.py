"""Following a run: its events, resumed after a cut, and its state where no stream gets through."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from ._answers import RunView
from ._errors import ApiError, LlmprofError, Unreachable
from ._http import Connection

RECONNECT_S = 1.0
POLL_S = 2.0
PATIENCE_S = 60.0
MAX_CUTS = 3


def updates(connection: Connection, run_id: str) -> Iterator[dict[str, Any] | None]:
    """Yields the events of a run until it has ended, and None while there are none."""
    after, cuts, outage = 0, 0, _Outage()
    while True:
        progressed = False
        try:
            if cuts < MAX_CUTS:
                for number, event in _stream(connection, run_id, after):
                    outage.over()
                    if number:
                        after, progressed = max(after, number), True
                    yield event or None
                    if event.get("event") == "end":
                        return
                cuts = 0 if progressed else cuts + 1
            else:
                yield None
            run: RunView = connection.json("GET", f"/runs/{run_id}")
            outage.over()
            if run["ended_at"]:
                yield None
                return
        except (Unreachable, ApiError) as error:
            # A stream that is cut breaks off with an error, too.
            cuts = 0 if progressed else cuts + 1
            outage.tolerate(error, run_id)
        time.sleep(RECONNECT_S if cuts < MAX_CUTS else POLL_S)


class _Outage:
    """Time since the service answered last."""

    def __init__(self) -> None:
        self.since: float | None = None

    def over(self) -> None:
        self.since = None

    def tolerate(self, error: LlmprofError, run_id: str) -> None:
        """Raises an error that does not pass by waiting, or that lasts."""
        if isinstance(error, ApiError) and error.status not in (429, 503):
            raise error
        self.since = self.since or time.monotonic()
        if time.monotonic() - self.since > PATIENCE_S:
            raise Unreachable(
                f"{error}; the run continues: Client.run({run_id!r}).wait() resumes"
            ) from error
        if isinstance(error, ApiError) and error.retry_after_s:
            time.sleep(min(error.retry_after_s, 60))


def _stream(
    connection: Connection, run_id: str, after: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The events after `after`, with their ids; 0 of an event without one."""
    headers = {"accept": "text/event-stream"}
    if after:
        headers["last-event-id"] = str(after)
    path = f"/runs/{run_id}/events"
    with connection.stream(path, headers) as response:
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            raise connection.foreign(path, response)
        number, data = 0, ""
        for line in response.iter_lines():
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if line.startswith(":"):
                # Sent while nothing happens.
                yield 0, {}
            elif field == "id":
                number = int(value) if value.isdigit() else 0
            elif field == "data":
                data += value
            elif not line and data:
                yield number, json.loads(data)
                number, data = 0, ""
