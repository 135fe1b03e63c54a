#!/usr/bin/env bash
# Profiles a program that is no runner of the service's on a GPU host: run from the repository's root.
#
#   tests/gpu/command.sh [--bin DIR] [--device auto|cpu] [--tokens N]
#
# Starts the service of DIR (default target/release) with one command as a target, the model runner called as anybody's program would be,
# submits it deep, follows it to its end, and prints its steps, stages and the service's GPU gauges. Exit code 0: the passes that a
# GPU has all succeeded, kernels were attributed to both stages, and their counters were read. Needs bash, curl and python3; compiles nothing.
set -euo pipefail
bin=target/release device=auto tokens=16
while [ $# -gt 0 ]; do
  case $1 in
    --bin) bin=$2; shift ;;
    --device) device=$2; shift ;;
    --tokens) tokens=$2; shift ;;
    *) sed -n '2,8p' "$0" >&2; exit 2 ;;
  esac
  shift
done
here=$(cd "$(dirname "$0")" && pwd)
targets=$(mktemp --suffix=.toml)
model=deepseek-ocr on=cuda:0 gpus=1
[ "$device" != cpu ] || model=deepseek-ocr-tiny on=cpu gpus=0
cat >"$targets" <<TOML
[commands.generate]
description = "Generates with $model"
program = "model-runner"
args = ["run", "--model", "$model", "--device", "$on", "--prompt-tokens", "512", "--max-new-tokens={tokens}", "--repeats", "1", "--warmup", "1", "--out", "{out}"]
stages = ["prefill=prefill@LLM", "decode_all=decode_all@LLM"]
without = ["warmup"]
gpus = $gpus
params.tokens = { type = "int", min = 1, max = 256, default = 16, description = "Tokens to generate" }
TOML
export LLMPROF__SERVER__TARGETS=$targets
. "$here/service.sh"

follow command "$(printf '{"target": {"command": "generate", "params": {"tokens": %d}}, "mode": "deep", "repeats": 2, "warmup": 1, "device": "%s"}' "$tokens" "$device")"
curl -sf "$base/runs/$id/artifacts/report.json" >"$data/report.json"
curl -sf "$base/metrics" | grep '^llmprof_gpu' || true
rm -f "$targets"
python3 - "$data" "$device" <<'PYTHON'
import json, pathlib, sys
data, device = pathlib.Path(sys.argv[1]), sys.argv[2]
run, report = json.loads((data / "command.run.json").read_text()), json.loads((data / "report.json").read_text())
failures = []
print("state", run["state"])
for step in run["steps"]:
    print(f"  {step['step']:12} {step['state']:10} {step.get('message') or ''}")
wanted = ["baseline", "nsys", "analyze", "report"] + ([] if device == "cpu" else ["ncu"])
for name in wanted:
    if not any(step["step"] == name and step["state"] == "succeeded" for step in run["steps"]):
        failures.append(f"step {name} did not succeed")
print("command", json.dumps(report["aggregates"].get("command")))
print("overhead", json.dumps(report.get("overhead")))
kernels, counters = report["stage_kernels"], report["counters"]
for stage in ["prefill", "decode_all"]:
    ran = sum(row["launches"] for row in kernels if row["stage"] == stage)
    read = [counter for counter in counters if counter["stage"] == stage]
    time = report["aggregates"]["stage_ms"].get(stage)
    print(f"{stage}: {json.dumps(time)}, {ran} kernels, counters of {len(read)}")
    if not time:
        failures.append(f"{stage} was not timed")
    if device != "cpu" and not (ran and read):
        failures.append(f"{stage}: no kernels, or no counters of them")
for finding in report["findings"]:
    print(f"  {finding['severity']:8} {finding['id']}: {finding['message'][:120]}")
print("FAIL: " + "; ".join(failures) if failures else "PASS")
sys.exit(bool(failures))
PYTHON
