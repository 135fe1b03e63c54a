"""An agent by script: it finds the cause of a regression through the tools alone.

It knows a label and nothing of what was changed. Every id, name and condition of a call comes from
an earlier answer. Over HTTP and standard input, in both generations of the protocol, each answer is
checked to be within its bounds.

usage: investigate.py URL TOKEN LLMPROF LABEL STAGE CAUSE KERNEL OPERATOR
"""

import asyncio
import json
import sys
from contextlib import asynccontextmanager

import httpx2
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

MAX_CONTENT, MAX_TEXT, MAX_TOOLS = 16 << 10, 2 << 10, 10


class Tools:
    """The tools, as a client calls them."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def __call__(self, name: str, **arguments: object) -> dict:
        result = await self.client.call_tool(name, arguments)
        text = result.content[0].text
        content = result.structured_content
        size = len(json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode())
        assert size <= MAX_CONTENT and len(text.encode()) <= MAX_TEXT, f"{name}: {size} bytes"
        assert not result.is_error, f"{name} {arguments}: {text}"
        return content

    async def error(self, name: str, **arguments: object) -> str:
        """The line of a call that fails."""
        result = await self.client.call_tool(name, arguments)
        assert result.is_error, f"{name} {arguments} did not fail"
        assert "\n" not in result.content[0].text
        return result.content[0].text


async def investigate(tools: Tools, label: str) -> dict:
    """Why is the newest run with this label slower than the one before?"""
    runs = (await tools("find_runs", label=label, state="succeeded", limit=2))["runs"]
    after, before = (run["run_id"] for run in runs)
    compared = await tools("compare_runs", a=before, b=after)
    assert compared["comparable"], compared["differences"]
    culprit = compared["causes"][0]
    assert culprit["change_ns"] > 0, "the newest run is not slower"

    # Is the cause in the run's own ledger, and with how large a saving?
    ledger = await tools("ledger", run_id=after, stage=culprit["stage"])
    cause = next(it for it in ledger["causes"] if it["cause"] == culprit["cause"])
    row = [f"stage={culprit['stage']}", f"cause={culprit['cause']}"]
    row.append(f"kernel={culprit['kernel']}")

    # The same row of both runs, and the source of the later one.
    member = {}
    for run in (before, after):
        found = await tools("table", run_id=run, table="ledger_members", where=row)
        rows = [it for it in found["rows"] if it.get("operator") == culprit.get("operator")]
        member[run] = sum(it["ns"] for it in rows)
    assert member[after] - member[before] == culprit["change_ns"], "the tables agree"
    proof = await tools(
        "source_of_figure", run_id=after, table="ledger_members", column="ns", where=row
    )
    assert proof["files"] and all(len(it["sha256"]) == 64 for it in proof["files"]), proof
    return {
        "stage": culprit["stage"],
        "cause": culprit["cause"],
        "meaning": cause["meaning"],
        "kernel": culprit["kernel"],
        "operator": culprit.get("operator"),
        "slower_ms": culprit["change_ns"] / 1e6,
        "formula": proof["formula"],
        "file": proof["files"][0]["path"],
    }


async def errors(tools: Tools) -> None:
    """Mistakes of an agent: each is a line that states what to do."""
    run = (await tools("find_runs", limit=1))["runs"][0]["run_id"]
    assert "find_runs" in await tools.error("ledger", run_id="latest")
    assert "column_not_found" in await tools.error("table", run_id=run, table="stages", sort="x")
    assert "unknown field" in await tools.error("table", run_id=run, tabel="stages")
    limit = await tools.error("table", run_id=run, table="stages", limit=100_000)
    assert "between 1 and 200" in limit
    try:
        await tools.client.call_tool("delete_everything", {})
    except Exception as error:
        assert "the tools are" in str(error), error
    else:
        raise AssertionError("a tool that does not exist answered")
    names = [it["name"] for it in (await tools("table", run_id=run))["tables"]]
    for name in names:
        await tools("table", run_id=run, table=name, limit=200)


async def profile(tools: Tools) -> None:
    """Submits a run, leaves a wait, and reads the answer of another wait."""
    model = next(it["name"] for it in (await tools("describe"))["models"] if "tiny" in it["name"])
    request = {"model": model, "mode": "basic", "repeats": 2, "max_new_tokens": 8}
    assert (await tools("submit_run", **request, dry_run=True))["steps"]
    run = (await tools("submit_run", **request))["run_id"]
    try:
        async with asyncio.timeout(0.2):
            await tools("wait_for_run", run_id=run, timeout_s=50)
    except TimeoutError:
        pass
    state = {"has_ended": False}
    while not state["has_ended"]:
        state = await tools("wait_for_run", run_id=run, timeout_s=20)
    assert state["state"] in ("succeeded", "partial"), state
    answer = await tools("ledger", run_id=run)
    assert any(it["text"].startswith("Prefill takes ") for it in answer["sentences"]), answer
    table = {"table": "aggregates", "column": "first_token_ms"}
    proof = await tools("source_of_figure", run_id=run, **table)
    assert proof["pass"] == ["baseline"] and proof["counts"] == {"ms.n": 2}, proof


@asynccontextmanager
async def over_http(url: str, token: str, mode: str):
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with httpx2.AsyncClient(headers=headers, timeout=70) as http:
        server = streamable_http_client(f"{url}/mcp", http_client=http)
        async with Client(server, mode=mode) as client:
            yield client


def over_stdio(url: str, token: str, mode: str, llmprof: str) -> Client:
    command = StdioServerParameters(
        command=llmprof, args=["mcp", "--server", url], env={"LLMPROF_TOKEN": token}
    )
    return Client(command, mode=mode)


async def without_token(url: str) -> None:
    """A service with tokens refuses an agent without one."""
    async with httpx2.AsyncClient() as http:
        answer = await http.post(f"{url}/mcp", json={}, headers={"accept": "application/json"})
    assert answer.status_code == 401 and answer.json()["error"]["code"] == "unauthenticated"
    assert answer.headers["www-authenticate"].startswith("Bearer")


async def main() -> None:
    url, token, llmprof, label, *planted = sys.argv[1:]
    if token:
        await without_token(url)
    generations = {"auto": "2026-07-28", "legacy": "2025-11-25"}
    for mode, version in generations.items():
        servers = {
            "http": over_http(url, token, mode),
            "stdio": over_stdio(url, token, mode, llmprof),
        }
        for transport, server in servers.items():
            async with server as client:
                assert client.protocol_version == version, client.protocol_version
                assert len((await client.list_tools()).tools) <= MAX_TOOLS
                tools = Tools(client)
                found = await investigate(tools, label)
                names = [found[it] for it in ("stage", "cause", "kernel", "operator")]
                assert names == planted, f"found {names}, planted {planted}"
                await errors(tools)
                if (mode, transport) in (("auto", "http"), ("legacy", "stdio")):
                    await profile(tools)
            print(f"agent over {transport}, MCP {version}: {json.dumps(found)}")


asyncio.run(main())
