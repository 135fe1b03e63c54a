#!/usr/bin/env bash
# Calls the tools of agents (MCP) of a running service with the reference clients for Python and
# JavaScript, in both generations of the protocol, over HTTP and over `llmprof mcp`. Imports a
# capture twice, then with a regression; an agent by script must find its cause.
# usage: scripts/check-agents.sh http://127.0.0.1:8080 [TOKEN]
# Needs Python 3.11, npm and a built llmprof ($LLMPROF, or target/debug/llmprof); the clients come
# from PyPI and the npm registry, pinned and cached.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
url=${1:?usage: check-agents.sh URL [TOKEN]}
token=${2:-}
llmprof=${LLMPROF:-${CARGO_TARGET_DIR:-$root/target}/debug/llmprof}
cache=${LLMPROF_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/llmprof}
for tool in python3 npm "$llmprof"; do
    command -v "$tool" >/dev/null || { echo "check-agents: $tool is not installed" >&2 && exit 1; }
done

python=$cache/agent-python-2.3.0
if [ ! -x "$python/bin/mcp" ]; then
    rm -rf "$python"
    python3 -m venv "$python"
    "$python/bin/pip" install --quiet --disable-pip-version-check mcp==2.3.0
fi
node=$cache/agent-node-2.4.0
if [ ! -d "$node/node_modules/@modelcontextprotocol/client" ]; then
    rm -rf "$node"
    mkdir -p "$node"
    (cd "$node" && npm install --silent --no-fund --no-audit @modelcontextprotocol/client@2.4.0)
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$root"/tests/agents/* "$work"
cd "$work"
export LLMPROF_SERVER=$url LLMPROF_TOKEN=$token
trace=$root/tests/fixtures/captures/torch-kineto-eager.json.gz

# upload FILE LABEL
upload() {
    "$llmprof" upload "$1" --model decoder --label "$2" --wait >upload.log 2>&1 ||
        { cat upload.log >&2 && exit 1; }
}

# regression LABEL STAGE CAUSE KERNEL OPERATOR PLANTED...: both files and runs have the same names.
regression() {
    local label=$1-$$ expected=("${@:2:4}")
    mkdir "$1"
    cp "$trace" "$1/trace.json.gz"
    upload "$1/trace.json.gz" "$label"
    python3 plant.py "$trace" "$1/trace.json.gz" "${@:6}" >/dev/null
    upload "$1/trace.json.gz" "$label"
    "$python/bin/python" investigate.py "$url" "$token" "$llmprof" "$label" "${expected[@]}"
}
sdpa=cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_knob_35_16x128x128
sdpa+=_1x4x1_cga1x1x1_kernel0_0
regression kernel decode_all waves "$sdpa" aten::_cudnn_attention_forward kernel "$sdpa" 20
regression gap decode_all gap_host CatArrayBatchedCopy_vectorized aten::cat gap "$sdpa" 200

ln -s "$node/node_modules" node_modules
node generations.mjs "$url" "$token" "$llmprof"
