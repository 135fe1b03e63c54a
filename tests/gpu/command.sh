#!/usr/bin/env bash
# Profiles a program other than the service's runner on a GPU host. Run from the repository's root.
#
#   tests/gpu/command.sh [--bin DIR] [--device auto|cpu] [--tokens N] [--python PYTHON] [--out DIR]
#                        [--names 'NAME ...'] [--mode deep|light] [--skip 'STEP ...']
#
# Starts the service of DIR (default target/release) with commands as targets: the model runner
# called as any other program; if PYTHON has PyTorch, torch_stages.py alone and as two workers of
# torchrun on one GPU; if it has transformers, DeepSeek-OCR's decoder of bench/peer.py, with ranges
# and without any; and if it has JAX, jax_steps.py, without ranges. Submits each in --mode, follows
# it to its end, and prints its steps, stages and processes, the coverage of counters, and the
# service's GPU gauges. Exits with 0 if all passes of a GPU succeeded, kernels were attributed to both
# stages of each process, their counters were read, the steps of programs without ranges were
# recognised, and the profilers of PyTorch and NVIDIA recorded the same kernels. --out keeps reports,
# logs and timelines of the passes; --names selects programs; --skip leaves out passes, such as
# gpu_metrics and gemm_log. Needs bash, curl and python3; compiles nothing.
set -euo pipefail
bin=target/release device=auto tokens=16 python='' out='' only='' mode=deep skip=''
while [ $# -gt 0 ]; do
  case $1 in
    --bin) bin=$2; shift ;;
    --device) device=$2; shift ;;
    --tokens) tokens=$2; shift ;;
    --python) python=$2; shift ;;
    --out) out=$2; shift ;;
    --names) only=$2; shift ;;
    --mode) mode=$2; shift ;;
    --skip) skip=$2; shift ;;
    *) sed -n '2,16p' "$0" >&2; exit 2 ;;
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
args = ["run", "--model", "$model", "--device", "$on", "--prompt-tokens", "512",
  "--max-new-tokens={tokens}", "--repeats", "1", "--warmup", "1", "--out", "{out}"]
stages = ["prefill=prefill@LLM", "decode_all=decode_all@LLM"]
exclude_ranges = ["warmup"]
gpus = $gpus
params.tokens = { type = "int", min = 1, max = 256, default = 16, description = "New tokens" }
TOML
[ -z "$python" ] || cat >>"$targets" <<TOML
[commands.torch]
description = "Layers in PyTorch"
program = "$python"
args = ["$here/torch_stages.py", "{tokens}"]
params.tokens = { type = "int", min = 1, max = 256, default = 16, description = "New tokens" }
[commands.transformers]
description = "DeepSeek-OCR's decoder in transformers, eager"
program = "$python"
args = ["$here/../../bench/peer.py", "--stages", "--tokens", "{tokens}"]
exclude_ranges = ["warmup"]
torch_profiler = true
params.tokens = { type = "int", min = 1, max = 256, default = 16, description = "New tokens" }
[commands.transformers-plain]
description = "The same without ranges"
program = "$python"
args = ["$here/../../bench/peer.py", "--stages", "--no-ranges", "--tokens", "{tokens}"]
params.tokens = { type = "int", min = 1, max = 256, default = 16, description = "New tokens" }
[commands.jax]
description = "A decoder in JAX without ranges"
program = "$python"
args = ["$here/jax_steps.py", "{tokens}"]
params.tokens = { type = "int", min = 1, max = 256, default = 16, description = "New tokens" }
[commands.torchrun]
description = "The same in two processes on one GPU"
program = "$python"
args = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
  "$here/torch_stages.py", "{tokens}"]
params.tokens = { type = "int", min = 1, max = 256, default = 16, description = "New tokens" }
TOML
export LLMPROF__SERVER__TARGETS=$targets
[ -z "$out" ] || { mkdir -p "$out"; out=$(cd "$out" && pwd); }
. "$here/service.sh"

# same_kernels FOLDER: checks that both profilers recorded the same kernels, by name, number, grid and
# order, inside the ranges of a run.
same_kernels() {
  local trace range check
  trace=$(find "$1/torch_profiler" -name 'process-*.json*' | head -n 1)
  for range in prefill decode_all; do
    "$bin/llmprof" align --mock "$trace" --e2e "$1/nsys/run.sqlite" --range "$range" \
      >"$data/align-$range.txt" 2>&1 || true # a capture alone has no inputs and clocks to compare
    for check in names counts geometry sequence; do
      grep -q "^## $check: pass" "$data/align-$range.txt" || status=1
      echo "PyTorch's profiler and nsys, $range: $(grep -A 2 "^## $check:" "$data/align-$range.txt" |
        tr -s '\n' ' ')"
    done
  done
}
status=0 names=generate
[ -z "$python" ] || names='generate torch torchrun'
if [ -n "$python" ] && "$python" -c 'import transformers.models.deepseek_ocr2' 2>/dev/null; then
  names="$names transformers transformers-plain"
fi
[ -z "$python" ] || ! "$python" -c 'import jax' 2>/dev/null || names="$names jax"
names=${only:-$names}
profiling=$(python3 -c 'import json, sys
print(json.dumps({step: {"enabled": False} for step in sys.argv[1:]}))' $skip)
for name in $names; do
  follow "$name" "$(printf '{"target": {"command": "%s", "params": {"tokens": %d}}, "mode": "%s",
    "repeats": 2, "warmup": 1, "device": "%s", "profiling": %s}' "$name" "$tokens" "$mode" \
    "$device" "$profiling")"
  curl -sf "$base/runs/$id/artifacts/report.json" >"$data/$name.report.json"
  [ "$name" != transformers ] || same_kernels "$data/runs/$id"
  [ -z "$out" ] || (cd "$data/runs/$id" &&
    tar -cJf "$out/$name.tar.xz" report.json progress.jsonl logs \
      $(ls -d ncu/choice.json nsys/run.sqlite torch_profiler 2>/dev/null))
done
curl -sf "$base/metrics" | grep '^llmprof_gpu' || true
rm -f "$targets"
python3 - "$data" "$device" "$mode" "$skip" "$tokens" $names <<'PYTHON' || status=1
import datetime, json, pathlib, sys
data, device, mode, skipped, tokens = pathlib.Path(sys.argv[1]), *sys.argv[2:6]
tokens, names = int(tokens), sys.argv[6:]
wanted = ["baseline", "nsys", "analyze", "report"]
wanted += ["gpu_metrics", "ncu"] if device != "cpu" and mode == "deep" else []
wanted = [it for it in wanted if it not in skipped.split()]
counted = "ncu" in wanted
PLAIN = {"transformers-plain": 3, "jax": 2}
failures = []
for name in names:
    files = (data / f"{name}.{kind}.json" for kind in ("run", "report"))
    run, report = (json.loads(file.read_text()) for file in files)
    print(f"{name}: {run['state']}")
    for step in run["steps"]:
        ended = [step[key] and step[key].replace("Z", "+00:00") for key in ("started_at", "ended_at")]
        times = [datetime.datetime.fromisoformat(it) for it in ended if it]
        seconds = f"{(times[1] - times[0]).total_seconds():.1f} s" if len(times) == 2 else "-"
        print(
            f"  {step['step']:12} {step['state']:10} {seconds:>8}  {step.get('message') or ''}"
        )
    for step in wanted:
        if not any(it["step"] == step and it["state"] == "succeeded" for it in run["steps"]):
            failures.append(f"{name}: step {step} did not succeed")
    times = report["aggregates"]["command"]
    unprofiled, traced = times["plain_ms"]["mean"], times["traced_ms"]["mean"]
    print(f"  process: unprofiled {unprofiled:.0f} ms, traced {traced:.0f} ms")
    kernels, counters = report["processes"], report["counters"]
    if name in PLAIN:
        # Twice a prompt and its tokens in JAX; thrice in transformers, warm-up included.
        turns, steps = PLAIN[name], report.get("engine_steps", [])
        found = [sum(it["class"] == kind for it in steps) for kind in ("prefill", "decode")]
        print(f"  steps without ranges: {found[0]} of {turns} prefill, "
              f"{found[1]} of {turns * tokens} decode, {len(steps)} in all")
        if found[0] > turns or found[1] > turns * tokens:
            failures.append(f"{name}: more steps than the program ran")
        # The first forward of a process is cold: it may have kernels of its own.
        if sum(found) < turns * (1 + tokens) - 1:
            failures.append(f"{name}: {sum(found)} of {turns * (1 + tokens)} steps recognised")
        if counted and not counters:
            failures.append(f"{name}: no counters")
    for stage in ["prefill", "decode_all"]:
        ran = {row["process"]: row["launches"] for row in kernels if row["stage"] == stage}
        read = [counter for counter in counters if counter["stage"] == stage]
        time = report["aggregates"]["stage_ms"].get(stage)
        mean = time["mean"] if time else "-"
        print(
            f"  {stage}: {mean} ms traced, kernels by process {sorted(ran.values())}, "
            f"counters of {len(read)}"
        )
        total = [it["kernel_ms"] for it in report["stage_kernels"] if it["stage"] == stage]
        like = sum(it["timeline_total_ms"] or 0 for it in read)
        # Profiled kernels and launch configurations that have launches of other durations.
        unlike = {
            (it["full_name"], str(it["grid"]), str(it["block"])): it["unlike_ms"] or 0
            for it in read
        }
        of_time = lambda ms: 100 * ms / total[0] if total else 0
        share, profiled = of_time(like), of_time(like + sum(unlike.values()))
        if counted:
            print(f"  {stage}: kernels of {profiled:.1f} % of its time profiled, counters of {share:.1f} %")
        if counted and name in ("generate", "transformers") and profiled < 90:
            failures.append(f"{name}, {stage}: {profiled:.1f} % of its kernel time profiled")
        if not time:
            failures.append(f"{name}: {stage} was not timed")
        processes = 2 if name == "torchrun" else 1
        if device != "cpu" and (len(ran) != processes or (counted and not read)):
            failures.append(f"{name}, {stage}: no kernels of each process, or no counters of them")
    for finding in report["findings"]:
        print(f"  {finding['severity']:8} {finding['id']}: {finding['message'][:120]}")
print("FAIL: " + "; ".join(failures) if failures else "PASS")
sys.exit(bool(failures))
PYTHON
exit "$status"
