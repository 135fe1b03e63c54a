"""The client against a running service: LLMPROF_SERVER, with LLMPROF_TOKEN."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pandas
import polars
import pytest

from llmprof import ApiError, Client, LlmprofError, Run, RunFailed

URL = os.environ.get("LLMPROF_SERVER", "")
pytestmark = pytest.mark.skipif(not URL, reason="LLMPROF_SERVER is not set")
SMALL: dict[str, Any] = {"mode": "basic", "repeats": 2, "warmup": 1, "max_new_tokens": 4}


@pytest.fixture(scope="module")
def client() -> Client:
    return Client(URL)


@pytest.fixture(scope="module")
def run(client: Client) -> Run:
    """A small run that has ended."""
    submitted = client.submit(model="llama-tiny", labels=["python"], **SMALL)
    return submitted.wait(timeout_s=300, progress=False)


def test_a_run_is_submitted_waited_for_and_listed(client: Client, run: Run) -> None:
    assert run.has_ended and run.state in ("succeeded", "partial")
    assert "llama-tiny" in client.models() and client.version()
    listed = list(client.runs(label="python", limit=5))
    assert run.id in [found["run_id"] for found in listed]
    assert client.run(run.id).view["name"] == "llama-tiny"
    assert run.state in repr(run) and "<table>" in run._repr_html_()


def test_the_events_of_an_ended_run_end_with_its_state(run: Run) -> None:
    events = list(run.events())
    assert events[0]["event"] == "attempt"
    assert events[-1] == {"event": "end", "state": run.state, "message": run.view["message"]}


def test_a_table_is_a_frame_of_pandas_or_polars(run: Run) -> None:
    names = [table["name"] for table in run.tables()]
    assert {"stages", "operators"} <= set(names)
    rows = run.rows("operators")
    frame = run.table("operators")
    assert isinstance(frame, pandas.DataFrame) and len(frame) == len(rows)
    other = run.table("operators", "polars")
    assert isinstance(other, polars.DataFrame) and other.columns == list(frame.columns)
    for name in names:
        tables = run.table(name, "pandas"), run.table(name, "polars")
        assert len(tables[0]) == len(tables[1]), name


def test_rows_are_filtered_sorted_and_limited(run: Run) -> None:
    column = "inclusive_ms"
    all_rows = run.rows("operators")
    median = sorted(row[column] for row in all_rows)[len(all_rows) // 2]
    found = run.rows(
        "operators", where=["stage=prefill", f"{column}={median}.."], sort=f"-{column}"
    )
    expected = [row for row in all_rows if row["stage"] == "prefill" and row[column] >= median]
    assert len(found) == len(expected) > 0
    assert [row[column] for row in found] == sorted((r[column] for r in found), reverse=True)
    assert len(run.rows("operators", text="prefill", limit=1)) == 1
    with pytest.raises(ApiError, match="no column price") as refused:
        run.rows("operators", where=["price=1"])
    assert (refused.value.status, refused.value.code) == (404, "column_not_found")


def test_a_report_is_shown_in_a_frame_of_its_own(run: Run) -> None:
    report = run.report()
    shown = report._repr_html_()
    assert shown.startswith('<iframe sandbox="" srcdoc="&lt;!doctype html&gt;')
    assert report.markdown.startswith("# ") and report.data["stages"]


def test_files_are_fetched_once_resumed_and_verified(run: Run, tmp_path: Path) -> None:
    fetched = run.fetch(tmp_path, "report.*")
    names = sorted(path.name for path in fetched)
    assert names == ["report.html", "report.json", "report.md"]
    report = tmp_path / "report.json"
    whole = report.read_bytes()
    report.unlink()
    (tmp_path / "report.json.part").write_bytes(whole[:100])
    assert run.fetch(tmp_path, "report.json") == [report] and report.read_bytes() == whole
    assert not (tmp_path / "report.json.part").exists()
    everything = run.fetch(tmp_path)
    assert len(everything) == len(run.files())
    with pytest.raises(LlmprofError, match="no such file"):
        run.fetch(tmp_path, "*.pdf")


def test_a_cancelled_run_raises_when_it_is_waited_for(client: Client) -> None:
    # The second run waits for the first.
    ahead = client.submit(model="llama-tiny", **SMALL)
    queued = client.submit(model="llama-tiny", **SMALL)
    queued.cancel()
    with pytest.raises(RunFailed) as failed:
        queued.wait(timeout_s=300, progress=False)
    assert failed.value.state == "cancelled" and failed.value.run_id == queued.id
    ahead.wait(timeout_s=300, progress=False)


def test_an_invalid_submission_states_the_remedy(client: Client) -> None:
    with pytest.raises(ApiError, match="llama-tiny"):
        client.submit(model="llama-tin")
    with pytest.raises(LlmprofError, match="a model or a command"):
        client.submit()


@pytest.mark.skipif(not os.environ.get("LLMPROF_TOKEN"), reason="the service needs no token")
def test_a_wrong_token_and_none_state_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ApiError, match="refused the token: .*llmprof token create"):
        Client(URL, token="llmprof_wrong").models()
    monkeypatch.delenv("LLMPROF_TOKEN")
    with pytest.raises(ApiError, match="requires a token: set LLMPROF_TOKEN"):
        Client(URL).models()
