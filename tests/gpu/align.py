"""Reads what the runs of align.sh left, prints a line for each alignment, and ends with 1 if a verdict is not the expected one.

Looks at files and answers of the service only; measures nothing."""

import json
import pathlib
import sys

data, device = pathlib.Path(sys.argv[1]), sys.argv[2]
wrong = 0


def load(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def shown(value, digits):
    return "-" if value is None else f"{value:.{digits}f}"


def because(found):
    """The checks that the verdict rests on."""
    checks = [it for it in found["checks"] if it["decisive"] and it["verdict"] == found["verdict"] != "pass"]
    ground = [it for it in checks if it["id"] in ("complete", "isolation")]
    return ", ".join(it["id"] for it in (ground if found["verdict"] == "inconclusive" and ground else checks))


head = ["", "run", "stage", "expected", "mock", "extracted", "kernels", "mock us", "model us", "ratio", "interval", "because of"]
rows = [head]
for line in (data / "submitted").read_text().splitlines():
    name, run_id, *expected = line.split()
    run, folder = load(data / f"{name}.run.json"), data / "runs" / run_id
    for stage, wanted in zip(["prefill", "decode"], expected):
        wanted = "inconclusive" if device == "cpu" else wanted
        found, control = load(folder / f"alignment-{stage}.json"), load(folder / f"alignment-extracted-{stage}.json")
        if found is None or control is None:
            steps = [it for it in run["steps"] if it["state"] not in ("succeeded", "running")]
            told = "; ".join(f"{it['step']} {it['state']}: {it['message']}" for it in steps) or run["message"]
            wrong += 1
            rows.append(["FAIL", name, stage, wanted, "none", "none", "-", "-", "-", "-", "-", told or ""])
            continue
        # The extracted part is the control: it must pass wherever something can be told at all.
        good = found["verdict"] == wanted and control["verdict"] == ("inconclusive" if device == "cpu" else "pass")
        wrong += not good
        latency = found["latency"] or {}
        interval = latency.get("interval")
        per = [shown(found[side]["kernels_per_instance"], 1) for side in ("mock", "e2e")]
        rows.append([
            "PASS" if good else "FAIL", name, stage, wanted, found["verdict"], control["verdict"], " / ".join(per),
            shown(latency.get("mock_us"), 1), shown(latency.get("e2e_us"), 1), shown(latency.get("ratio"), 3),
            "-" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}",
            because(found) + ("" if control["verdict"] in ("pass", "inconclusive") else f"; extracted: {because(control)}"),
        ])

widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
for row in rows:
    print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
print("every verdict is the expected one" if not wrong else f"{wrong} verdicts are not the expected ones")
sys.exit(bool(wrong))
