"""Compares decode's busy time of the runs of graphs.sh: graphs traced as a whole and by node.

Reads reports; measures nothing. The busy share of whole graphs is an upper bound: it includes the
gaps between kernels inside a graph, which are idle if traced by node. Exits with 1 if a check
failed.
"""

import json
import pathlib
import statistics
import sys

data = pathlib.Path(sys.argv[1])
runs = [line.split() for line in (data / "submitted").read_text().splitlines()]
failures, rows, busy = [], [], {"graph": [], "node": []}


def check(run, passed, message):
    if not passed:
        failures.append(f"{run}: {message}")


for name, run in runs:
    state = json.loads((data / f"{name}.run.json").read_text())
    check(name, state["state"] == "succeeded", f"ended {state['state']}: {state['message']}")
    report = json.loads((data / "runs" / run / "report.json").read_text())
    trace = "graph" if "graph" in name else "node"
    for row in (row for row in report["stage_gpu"] if row["stage"] == "decode_all"):
        launches, whole, share = row["graph_launches"], row["whole_graphs"], row["busy_pct"]
        # A step is one replay of the decode graph.
        replay = row["busy_ms"] / launches if row["busy_ms"] is not None and launches else None
        rows.append((name, row["busy_ms"], share, replay, row["idle_ms"], launches, whole))
        check(name, share is not None and 0 <= share <= 100, f"busy {share} %")
        check(
            name,
            row["busy_is_upper_bound"] == (trace == "graph"),
            "only whole graphs are an upper bound",
        )
        check(name, (whole > 0) == (trace == "graph"), f"{whole} whole graphs")
        if replay is not None and not name.startswith("import"):
            busy[trace].append((replay, share))
    ids = [finding["id"] for finding in report["findings"]]
    check(name, "decode_eager" not in ids, "advice to replay a graph though decode does")
    check(
        name,
        ("graphs_traced_whole" in ids) == (trace == "graph"),
        "graphs_traced_whole fires for whole graphs only",
    )
    advice = [
        f["advice"]
        for f in report["findings"]
        if "CUDA graph" in (f["advice"] or "") and "eplay" in (f["advice"] or "")
    ]
    check(name, not advice, f"advice to replay a graph: {advice}")

head = (
    "run",
    "decode busy ms",
    "busy %",
    "busy ms/replay",
    "idle ms",
    "graph launches",
    "whole graphs",
)
text = [
    [f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row]
    for row in [head, *rows]
]
widths = [max(len(row[at]) for row in text) for at in range(len(head))]
for row in text:
    print(
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths))
        )
    )
if busy["graph"] and busy["node"]:
    (graph, graph_share), (node, node_share) = (
        [statistics.median(values) for values in zip(*busy[trace])] for trace in ("graph", "node")
    )
    print(
        f"median busy time of a replay: {graph:.3f} ms as a whole graph, {node:.3f} ms by node, "
        f"ratio {graph / node:.4f}"
    )
    print(
        f"median busy share of decode: at most {graph_share:.2f} % as whole graphs, "
        f"{node_share:.2f} % by node"
    )
    check("both", abs(graph / node - 1) <= 0.03, "busy times differ by more than 3 %")
    check("both", graph_share >= node_share - 0.5, "the upper bound lies below what the nodes show")
else:
    failures.append("both: a decode without a busy time")
for failure in failures:
    print("FAILED", failure)
print("FAIL" if failures else "PASS")
sys.exit(bool(failures))
