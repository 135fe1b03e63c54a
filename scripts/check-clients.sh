#!/usr/bin/env bash
# Generates a Python and a TypeScript client from the contract, type-checks both, and submits a run
# with each to a running service. Builds the wheel of clients/python, and tests it and its example
# notebook in a fresh environment against the service.
# usage: scripts/check-clients.sh http://127.0.0.1:8080 [TOKEN]
# Needs Python 3.11 and npm; generators and libraries come from PyPI and the npm registry, pinned
# and cached.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
url=${1:?usage: check-clients.sh URL [TOKEN]}
token=${2:-}
cache=${LLMPROF_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/llmprof}
for tool in python3 npm; do
    command -v "$tool" >/dev/null || { echo "check-clients: $tool is not installed" >&2 && exit 1; }
done

python=$cache/client-python-0.29.1
if [ ! -x "$python/bin/openapi-python-client" ]; then
    rm -rf "$python"
    python3 -m venv "$python"
    "$python/bin/pip" install --quiet --disable-pip-version-check \
        openapi-python-client==0.29.1 mypy==1.19.1 ruff==0.14.6
fi
node=$cache/client-node-7.13
if [ ! -x "$node/node_modules/.bin/tsc" ]; then
    rm -rf "$node"
    mkdir -p "$node"
    (cd "$node" && npm install --silent --no-fund --no-audit openapi-typescript@7.13.0 \
        openapi-fetch@0.17.0 typescript@5.9.3 @types/node@20)
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$root/contracts/profile.yaml" "$root"/tests/clients/submit.* "$work"
cd "$work"

# It warns about responses that are files, not JSON; other omissions fail below.
PATH=$python/bin:$PATH "$python/bin/openapi-python-client" generate --path profile.yaml \
    --meta none --output-path llmprof_client >generated.log 2>&1 ||
    { cat generated.log >&2 && exit 1; }
if grep -q 'Unable to .* schema' generated.log; then
    echo "check-clients: the Python generator dropped schemas of the contract:" >&2
    grep 'Unable to .* schema' generated.log >&2
    exit 1
fi
"$python/bin/mypy" --no-error-summary --ignore-missing-imports \
    --python-executable "$python/bin/python" submit.py
PYTHONPATH=$work "$python/bin/python" submit.py "$url" ${token:+"$token"}

ln -s "$node/node_modules" node_modules
echo '{ "type": "module" }' >package.json
node_modules/.bin/openapi-typescript profile.yaml --default-non-nullable false \
    --output llmprof.ts >/dev/null
node_modules/.bin/tsc --strict --skipLibCheck --target es2022 --module nodenext \
    --moduleResolution nodenext --outDir out submit.ts
node out/submit.js "$url" ${token:+"$token"}

# Checks and builds in an environment that is kept; the wheel is installed into a fresh one.
package=$root/clients/python
tools=$cache/client-package-$(sha256sum "$package/requirements-test.txt" | cut -c1-12)
if [ ! -x "$tools/bin/pytest" ]; then
    rm -rf "$tools"
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check -r "$package/requirements-test.txt"
fi
cp -r "$package" package
cd package
"$tools/bin/ruff" check --quiet .
"$tools/bin/ruff" format --check --quiet .
"$tools/bin/mypy" --no-error-summary src tests
"$tools/bin/python" -m build --wheel --no-isolation --outdir dist . >/dev/null
python3 -m venv ../fresh
../fresh/bin/pip install --quiet --disable-pip-version-check -c requirements-test.txt \
    "$(echo dist/*.whl)[pandas,polars]" ipykernel nbclient nbformat pytest PyYAML
rm -r src # the tests import the wheel
export LLMPROF_SERVER=$url LLMPROF_TOKEN=$token LLMPROF_CONTRACT=$root/contracts/profile.yaml
../fresh/bin/python -m pytest --quiet -p no:cacheprovider
../fresh/bin/python - <<'EOF'
"""Executes the example notebook with the kernel of this environment."""
import nbformat
from nbclient import NotebookClient

notebook = nbformat.read("examples/first_run.ipynb", as_version=4)
NotebookClient(notebook, timeout=600).execute()
shown = [out.data for cell in notebook.cells for out in cell.get("outputs", []) if "data" in out]
assert any("srcdoc=" in data.get("text/html", "") for data in shown), "the report is not displayed"
assert any("<table" in data.get("text/html", "") for data in shown), "no table is displayed"
print(f"notebook: {len(notebook.cells)} cells executed, {len(shown)} results")
EOF
