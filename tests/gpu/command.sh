#!/usr/bin/env bash
# Profiles a program that is no runner of the service's on a GPU host: run from the repository's root.
#
#   tests/gpu/command.sh [--bin DIR] [--device auto|cpu] [--tokens N] [--python PYTHON]
#
# Starts the service of DIR (default target/release) with commands as targets: the model runner called as anybody's program would be, and,
# where PYTHON has PyTorch, torch_stages.py alone and as two workers of torchrun on one GPU. Submits each deep, follows it to its end, and
# prints its steps, stages and processes, and the service's GPU gauges. Exit code 0: the passes that a GPU has all succeeded, kernels were
# attributed to both stages of each process, and their counters were read. Needs bash, curl and python3; compiles nothing.
set -euo pipefail
bin=target/release device=auto tokens=16 python=''
while [ $# -gt 0 ]; do
  case $1 in
    --bin) bin=$2; shift ;;
    --device) device=$2; shift ;;
    --tokens) tokens=$2; shift ;;
    --python) python=$2; shift ;;
    *) sed -n '2,9p' "$0" >&2; exit 2 ;;
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
[ -z "$python" ] || cat >>"$targets" <<TOML
[commands.torch]
description = "Layers in PyTorch"
program = "$python"
args = ["$here/torch_stages.py", "{tokens}"]
params.tokens = { type = "int", min = 1, max = 256, default = 16, description = "Tokens to generate" }
[commands.torchrun]
description = "The same in two processes on one GPU"
program = "$python"
args = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "$here/torch_stages.py", "{tokens}"]
params.tokens = { type = "int", min = 1, max = 256, default = 16, description = "Tokens to generate" }
TOML
export LLMPROF__SERVER__TARGETS=$targets
. "$here/service.sh"

names=generate
[ -z "$python" ] || names='generate torch torchrun'
for name in $names; do
  follow "$name" "$(printf '{"target": {"command": "%s", "params": {"tokens": %d}}, "mode": "deep", "repeats": 2, "warmup": 1, "device": "%s"}' "$name" "$tokens" "$device")"
  curl -sf "$base/runs/$id/artifacts/report.json" >"$data/$name.report.json"
done
curl -sf "$base/metrics" | grep '^llmprof_gpu' || true
rm -f "$targets"
python3 - "$data" "$device" $names <<'PYTHON'
import json, pathlib, sys
data, device, names = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
failures = []
for name in names:
    run, report = (json.loads((data / f"{name}.{what}.json").read_text()) for what in ("run", "report"))
    print(f"{name}: {run['state']}")
    for step in run["steps"]:
        print(f"  {step['step']:12} {step['state']:10} {step.get('message') or ''}")
    wanted = ["baseline", "nsys", "analyze", "report"] + ([] if device == "cpu" else ["ncu"])
    for step in wanted:
        if not any(it["step"] == step and it["state"] == "succeeded" for it in run["steps"]):
            failures.append(f"{name}: step {step} did not succeed")
    times = report["aggregates"]["command"]
    print(f"  process: plain {times['plain_ms']['mean']:.0f} ms, traced {times['traced_ms']['mean']:.0f} ms")
    kernels, counters = report["processes"], report["counters"]
    for stage in ["prefill", "decode_all"]:
        ran = {row["process"]: row["launches"] for row in kernels if row["stage"] == stage}
        read = [counter for counter in counters if counter["stage"] == stage]
        time = report["aggregates"]["stage_ms"].get(stage)
        print(f"  {stage}: {time['mean'] if time else '-'} ms traced, kernels by process {sorted(ran.values())}, counters of {len(read)}")
        if not time:
            failures.append(f"{name}: {stage} was not timed")
        if device != "cpu" and (len(ran) != (2 if name == "torchrun" else 1) or not read):
            failures.append(f"{name}, {stage}: no kernels of each process, or no counters of them")
    for finding in report["findings"]:
        print(f"  {finding['severity']:8} {finding['id']}: {finding['message'][:120]}")
print("FAIL: " + "; ".join(failures) if failures else "PASS")
sys.exit(bool(failures))
PYTHON
