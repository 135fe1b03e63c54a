"""Failures between client and service, without one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

import llmprof._events as events
from llmprof import ApiError, Client, LlmprofError, NotAService, Unreachable

ID = "019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10"
Handler = Callable[[httpx.Request], httpx.Response]


def client(handler: Handler) -> Client:
    return Client("http://service", transport=httpx.MockTransport(handler))


def run_view(**fields: Any) -> dict[str, Any]:
    view = {"run_id": ID, "state": "running", "name": "tiny", "ended_at": None, "message": None}
    return {**view, "steps": [], "findings": [], **fields}


def refusal(status: int, code: str, message: str) -> httpx.Response:
    error = {"code": code, "message": message, "request_id": "1"}
    return httpx.Response(status, json={"error": error})


def test_a_url_without_a_scheme_and_a_closed_port_are_one_line() -> None:
    with pytest.raises(LlmprofError, match="expected a URL such as"):
        Client("gpu-host:8080")
    with pytest.raises(Unreachable, match="no answer from http://127.0.0.1:9: .*check the URL"):
        Client("http://127.0.0.1:9").models()


def test_another_server_is_recognised() -> None:
    page = client(lambda _: httpx.Response(200, html="<p>hello"))
    with pytest.raises(NotAService, match="is not an llmprof service: /models .*text/html"):
        page.models()
    missing = client(lambda _: httpx.Response(404, text="nope"))
    with pytest.raises(NotAService, match="404"):
        missing.models()
    to = "https://service/models"
    moved = client(lambda _: httpx.Response(308, headers={"location": to}))
    with pytest.raises(NotAService, match="redirects to https://service; use that URL"):
        moved.models()
    away = client(lambda _: httpx.Response(502, html="bad gateway"))
    with pytest.raises(Unreachable, match="a proxy in front of"):
        away.models()


def test_a_service_of_another_version_is_named() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/version":
            return httpx.Response(200, json={"version": "9.0.0"})
        return refusal(404, "route_not_found", "no route /models")

    with pytest.raises(ApiError, match="the service is llmprof 9.0.0, this is 0.1.0"):
        client(answer).models()


class Cut(httpx.SyncByteStream):
    """Events, and then a cut."""

    def __init__(self, *sent: dict[str, Any], first: int = 1) -> None:
        self.sent, self.first = sent, first

    def __iter__(self) -> Iterator[bytes]:
        for number, event in enumerate(self.sent, self.first):
            yield f"id: {number}\ndata: {json.dumps(event)}\n\n".encode()
        raise httpx.ReadError("connection reset")


def step(name: str) -> dict[str, Any]:
    return {"event": "step", "step": {"step": name, "state": "succeeded", "ended_at": "now"}}


def test_a_stream_that_is_cut_resumes_after_its_last_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "RECONNECT_S", 0.0)
    resumed: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/events"):
            return httpx.Response(200, json=run_view())
        after = request.headers.get("last-event-id")
        resumed.append(after)
        kind = {"content-type": "text/event-stream"}
        if after is None:
            return httpx.Response(200, headers=kind, stream=Cut(step("a"), step("b")))
        end = 'data: {"event": "end", "state": "succeeded"}\n\n'
        return httpx.Response(200, headers=kind, text=f": ping\n\n{end}")

    found = list(client(answer).run(ID).events())
    assert resumed == [None, "2"]
    names = [event["step"]["step"] for event in found if event["event"] == "step"]
    assert names == ["a", "b"] and found[-1]["state"] == "succeeded"


def test_a_proxy_that_lets_no_stream_through_is_polled_around(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "RECONNECT_S", 0.0)
    monkeypatch.setattr(events, "POLL_S", 0.0)
    counts = {"streams": 0, "views": 0}

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/events"):
            counts["streams"] += 1
            return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Cut())
        counts["views"] += 1
        ended = counts["views"] > 4
        view = run_view(state="succeeded", ended_at="now") if ended else run_view()
        return httpx.Response(200, json=view)

    run = client(answer).run(ID).wait(progress=False)
    assert run.state == "succeeded" and counts["streams"] == events.MAX_CUTS


def test_a_path_outside_the_folder_is_refused(tmp_path: Any) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/artifacts"):
            file = {"path": "../evil", "bytes": 1, "sha256": "0", "media_type": "text/plain"}
            return httpx.Response(200, json={"artifacts": [file]})
        return httpx.Response(200, json=run_view(ended_at="now"))

    with pytest.raises(LlmprofError, match="outside its folder"):
        client(answer).run(ID).fetch(tmp_path)
