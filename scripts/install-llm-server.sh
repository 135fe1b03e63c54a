#!/bin/sh
# Installs a real LLM server for the tests of loads into a virtual environment, pinned: llama.cpp's
# server (`xllamacpp`, 34 MB) and a generated model of under a megabyte. Running it again changes
# nothing. Prints the folder, for LLMPROF_LLM_SERVER.
set -eu
cd "$(dirname "$0")/.."
folder=${LLMPROF_LLM_SERVER:-${LLMPROF_CACHE:-$HOME/.cache/llmprof}/llm-server}
python=$folder/bin/python
[ -x "$python" ] || python3 -m venv "$folder"
wanted="xllamacpp==2026.10.11549 gguf==0.19.0 numpy==2.4.6"
[ "$(cat "$folder/installed" 2>/dev/null)" = "$wanted" ] || {
    # shellcheck disable=SC2086 # one word per package
    "$folder/bin/pip" install --quiet --disable-pip-version-check $wanted >&2
    printf '%s\n' "$wanted" >"$folder/installed"
}
model=$folder/random-llama.gguf
[ "$model" -nt tests/llm-server/model.py ] || {
    "$python" tests/llm-server/model.py "$model.new"
    mv "$model.new" "$model"
}
printf '%s\n' "$folder"
