#!/usr/bin/env bash
# Tests a running service against its own contract with schemathesis: every operation, valid and invalid requests, all checks.
# usage: scripts/contract-test.sh http://127.0.0.1:8080 [further options of `st run`]
# The service must be one that nothing else needs: runs are queued, cancelled and deleted.
set -euo pipefail

conf=$(cd "$(dirname "$0")/../conf/test" && pwd)
url=${1:?usage: contract-test.sh URL [options]}
shift
version=4.32.5
venv=${XDG_CACHE_HOME:-$HOME/.cache}/llmprof/schemathesis-$version
if [ ! -x "$venv/bin/st" ]; then
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check "schemathesis==$version"
fi

# A stream of events lasts as long as its run, so no answer is waited for longer than a few seconds.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
SCHEMATHESIS_HOOKS=schemathesis_files PYTHONPATH=$conf "$venv/bin/st" --config-file "$conf/schemathesis.toml" run "${url%/}/openapi.json" --checks all --max-time "${CONTRACT_TEST_SECONDS:-150}" --request-timeout 5 \
    --wait-for-schema 30 --continue-on-failure "$@"
