#!/usr/bin/env bash
# tests/gpu/engine.sh LLMPROF [PYTHON]: steps of an engine, compared with its own count.
#
# Runs tests/gpu/engine.py, which batches continuously, under llmprof: as a command in modes light
# and deep, with and without ranges; as a server with a recording window; under torchrun if there
# are two GPUs; and under the profiler of PyTorch, whose traces are analysed. Prints a table: steps
# by the engine's count and steps found, per class, and in how many of these the requests are right,
# absent or wrong. A wrong step fails the script; fewer steps are a figure. RUNS="NAME ..." selects
# runs by the names below. KEEP=DIR keeps counts, reports and exports. CPU=1 tries the script with a
# small model and no GPU: nsys records its ranges. LLMPROF has to be named llmprof, because it
# starts the load by this name. PYTHON needs PyTorch, and Triton for the kernels of an engine.
set -euo pipefail
llmprof=$(realpath "$1") python=$(command -v "${2:-python3}")
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d) service='' failed=0
trap 'kill "$service" 2>/dev/null; wait 2>/dev/null; rm -rf "$folder"' EXIT
small=() gpus=1 ranks=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)
if [ -n "${CPU:-}" ]; then
    small=(--device cpu --hidden 64 --layers 2 --heads 4 --kv-heads 2 --head-dim 16
        --intermediate 128 --vocabulary 500)
    gpus=0 ranks=2
    export LLMPROF__WORKER__DEVICES='["cpu"]'
else
    # Without a model runner for CUDA, a service uses the GPUs that are named.
    LLMPROF__WORKER__DEVICES=$(seq -s, -f '"cuda:%g"' 0 $((ranks - 1)))
    export LLMPROF__WORKER__DEVICES="[$LLMPROF__WORKER__DEVICES]"
fi
pair=$((gpus * 2))

# Prompts of different lengths for the load, each with a length of its output.
"$python" - >"$folder/prompts" <<'PYTHON'
import json, random
chosen = random.Random(0)
for _ in range(64):
    words = (f"w{chosen.randrange(500)}" for _ in range(chosen.randint(32, 512)))
    print(json.dumps({"prompt": " ".join(words), "new_tokens": chosen.randint(16, 96)}))
PYTHON

# command_of NAME KIND GPUS PROGRAM...: a command of targets.toml.
command_of() {
    local name=$1 kind=$2 count=$3
    shift 3
    printf '[commands.%s]\ndescription = "A continuous-batching engine"\n' "$name"
    printf 'kind = "%s"\ngpus = %s\nprogram = "%s"\nargs = [' "$kind" "$count" "$1"
    shift
    printf '"%s", ' "$@" --steps '{out}/steps.json' --annotate '{annotate}' --graphs '{graphs}'
    printf ']\n'
    # Settings of the host for NCCL.
    printf 'pass_env = ["NCCL_NVLS_ENABLE", "NVSHMEM_DISABLE_NVLS", '
    printf '"TORCH_SYMM_MEM_DISABLE_MULTICAST"]\n'
    printf 'params.annotate = { type = "enum", values = ["none", "vllm", "sglang"], '
    printf 'default = "none", description = "Ranges of the steps" }\n'
    printf 'params.graphs = { type = "enum", values = ["full", "none"], default = "full", '
    printf 'description = "CUDA graphs" }\n'
    [ "$kind" = program ] || cat <<TOML
ready = { url = "http://127.0.0.1:{port}/health", within_s = 300 }
load = { api = "completions", prompts = "$folder/prompts", concurrency = 16, requests = 64 }
window = { min_steps = { prefill = 2, decode = 20 }, max_s = 5 }
TOML
}
torchrun=("$python" -m torch.distributed.run --standalone --nproc-per-node 2 "$here/engine.py")
{
    command_of engine program "$gpus" "$python" "$here/engine.py" "${small[@]}"
    command_of engine-server server "$gpus" "$python" "$here/engine.py" "${small[@]}" \
        --serve '{port}'
    command_of engine-ranks program "$pair" "${torchrun[@]}" "${small[@]}"
    command_of engine-ranks-server server "$pair" "${torchrun[@]}" "${small[@]}" --serve '{port}'
} >"$folder/targets.toml"
. "$here/serve.sh"
LLMPROF__SERVER__TARGETS=$folder/targets.toml serve "$llmprof" "$folder" "$folder/data"

# wanted NAME: true if RUNS names the run, or nothing.
wanted() { [ -z "${RUNS:-}" ] || [[ " $RUNS " == *" $1 "* ]]; }

# kept NAME STEPS REPORT EXPORT: notes one run for the table.
kept() {
    printf '%s\t%s\t%s\t%s\n' "$@" >>"$folder/runs"
    [ -z "${KEEP:-}" ] || {
        mkdir -p "$KEEP"
        cp "$2" "$KEEP/$1.steps.json"
        cp "$3" "$KEEP/$1.report.json"
        [ ! -f "$4" ] || xz -T0 -6 -c "$4" >"$KEEP/$1.sqlite.xz"
    }
}

# profiled NAME COMMAND MODE ANNOTATE GRAPHS: one run of a command.
profiled() {
    wanted "$1" || return 0
    local id run started=$SECONDS
    id=$(curl -sS -X POST "$base/runs" -H 'content-type: application/json' -d "$(printf '{"target":
        {"command": "%s", "params": {"annotate": "%s", "graphs": "%s"}}, "mode": "%s",
        "repeats": 1, "warmup": 0}' "$2" "$4" "$5" "$3")" | python3 -c 'import json, sys
response = json.load(sys.stdin)
print(response.get("run_id") or sys.exit(response["error"]["message"]))')
    curl -sN --max-time 900 "$base/runs/$id/events" >/dev/null
    run=$folder/data/runs/$id
    curl -sf "$base/runs/$id" | python3 -c 'import json, sys
run = json.load(sys.stdin)
steps = ", ".join(step["step"] + " " + step["state"] for step in run["steps"])
print(sys.argv[1] + ": " + run["state"] + " after " + sys.argv[2] + " s: " + steps, file=sys.stderr)
for step in run["steps"]:
    if step["state"] == "failed":
        print("  " + step["step"] + ": " + (step.get("message") or ""), file=sys.stderr)
needed = {step["step"]: step["state"] for step in run["steps"]}
sys.exit(needed.get("nsys") != "succeeded" or needed.get("report") != "succeeded")
' "$1" $((SECONDS - started)) || {
        find "$run" -name '*.log' -exec tail -n 5 {} + >&2
        failed=1
        return
    }
    curl -sf "$base/runs/$id/report" -H 'accept: application/json' >"$folder/$1.json"
    kept "$1" "$run/nsys/out/steps.json" "$folder/$1.json" "$run/nsys/run.sqlite"
}

# imported NAME ANNOTATE [OPTION...]: a window under the profiler of PyTorch, alone or of two ranks.
imported() {
    local name=$1 annotate=$2 traces=$folder/$1 program=("$python" "$here/engine.py")
    shift 2
    wanted "$name" || return 0
    [[ $name != *ranks* ]] || program=("${torchrun[@]}")
    mkdir -p "$traces"
    if ! "${program[@]}" "${small[@]}" --steps "$traces/steps.json" --torch-profile "$traces" \
        --annotate "$annotate" "$@" >"$traces/log" 2>&1 ||
        ! "$llmprof" analyze "$traces"/window_0_rank_*.json.gz --out "$traces/report" \
            >"$traces/log" 2>&1; then
        echo "$name: failed" >&2
        tail -20 "$traces/log" >&2
        failed=1
        return
    fi
    kept "$name" "$traces/steps.json" "$traces/report/report.json" profiled
    [ -z "${KEEP:-}" ] || {
        mkdir -p "$KEEP/$name"
        cp -r "$traces"/window_* "$KEEP/$name"
        [ ! -d "$traces/captures" ] || cp -r "$traces/captures" "$KEEP/$name"
    }
}

profiled light engine light none full
profiled light-eager engine light none none
profiled light-vllm engine light vllm full
profiled deep engine deep none full
profiled deep-vllm engine deep vllm full
profiled server engine-server light none full
profiled server-vllm engine-server light vllm full
profiled server-deep engine-server deep none full
if [ "$ranks" -ge 2 ]; then
    profiled ranks engine-ranks light none full
    profiled ranks-vllm engine-ranks light vllm full
    profiled ranks-server engine-ranks-server light none full
    imported torch-ranks none
    imported torch-ranks-vllm vllm
else
    echo 'one GPU: no runs with two ranks' >&2
fi
imported torch none
imported torch-eager none --graphs none
imported torch-vllm vllm
imported torch-detailed vllm-detailed
imported torch-sglang sglang

"$python" -c 'import torch
gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
print(f"{gpu}, PyTorch {torch.__version__}")' 2>/dev/null
"$python" "$here/engine_check.py" "$folder" || failed=1
exit "$failed"
