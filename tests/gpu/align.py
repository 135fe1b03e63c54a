"""Prints a line per alignment of the runs of align.sh; exits with 1 on an unexpected verdict.

Reads files and responses of the service; measures nothing.
"""

import json
import pathlib
import sys

data, device = pathlib.Path(sys.argv[1]), sys.argv[2]
unexpected = 0


def load(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def shown(value, digits):
    return "-" if value is None else f"{value:.{digits}f}"


def deciding(found):
    """The checks that decide the verdict."""
    checks = [
        it
        for it in found["checks"]
        if it["decisive"] and it["verdict"] == found["verdict"] != "pass"
    ]
    preconditions = [it for it in checks if it["id"] in ("complete", "isolation")]
    return ", ".join(
        it["id"]
        for it in (
            preconditions if found["verdict"] == "inconclusive" and preconditions else checks
        )
    )


head = [
    "",
    "run",
    "stage",
    "expected",
    "mock",
    "extracted",
    "kernels",
    "mock us",
    "model us",
    "ratio",
    "interval",
    "mock / model W",
    "mock / model J",
    "deciding checks",
]
rows = [head]
for line in (data / "submitted").read_text().splitlines():
    name, run_id, *expected = line.split()
    run, folder = load(data / f"{name}.run.json"), data / "runs" / run_id
    for stage, wanted in zip(["prefill", "decode"], expected):
        wanted = "inconclusive" if device == "cpu" else wanted
        found, control = load(folder / f"alignment-{stage}.json"), load(
            folder / f"alignment-extracted-{stage}.json"
        )
        if found is None or control is None:
            steps = [it for it in run["steps"] if it["state"] not in ("succeeded", "running")]
            message = (
                "; ".join(f"{it['step']} {it['state']}: {it['message']}" for it in steps)
                or run["message"]
            )
            unexpected += 1
            rows.append(
                [
                    "FAIL",
                    name,
                    stage,
                    wanted,
                    "none",
                    "none",
                    "-",
                    "-",
                    "-",
                    "-",
                    "-",
                    "-",
                    "-",
                    message or "",
                ]
            )
            continue
        # The extracted part is the control: it must pass wherever there are kernels.
        good = found["verdict"] == wanted and control["verdict"] == (
            "inconclusive" if device == "cpu" else "pass"
        )
        unexpected += not good
        latency = found["latency"] or {}
        interval = latency.get("interval")
        sides = [found[side] for side in ("mock", "e2e")]
        per = [shown(side["kernels_per_instance"], 1) for side in sides]
        power = [side["power"] or {} for side in sides]
        # Joules of the part alone and of the whole model: of different work, so no ratio.
        watts = [shown(side.get("mean_w"), 1) for side in power]
        joules = [shown(side.get("energy_j"), 3) for side in power]
        rows.append(
            [
                "PASS" if good else "FAIL",
                name,
                stage,
                wanted,
                found["verdict"],
                control["verdict"],
                " / ".join(per),
                shown(latency.get("mock_us"), 1),
                shown(latency.get("e2e_us"), 1),
                shown(latency.get("ratio"), 3),
                "-" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}",
                " / ".join(watts),
                " / ".join(joules),
                deciding(found)
                + (
                    ""
                    if control["verdict"] in ("pass", "inconclusive")
                    else f"; extracted: {deciding(control)}"
                ),
            ]
        )

widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
for row in rows:
    print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
print(
    "all verdicts are as expected"
    if not unexpected
    else f"{unexpected} verdicts are not as expected"
)
sys.exit(bool(unexpected))
