#!/usr/bin/env bash
# Tests a running service against its own contract with schemathesis: every operation, valid and
# invalid requests, all checks.
# usage: scripts/contract-test.sh http://127.0.0.1:8080 [further options of `st run`]
# LLMPROF_TOKEN is sent with each request. LLMPROF_ROLE is the role of the token: as `viewer` every
# write must be refused, as `anonymous` (without a token, if the service requires one) every guarded
# operation. Otherwise use a service without other clients: runs are queued, cancelled and deleted.
# CONTRACT_TEST_SECONDS limits the duration.
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

role=${LLMPROF_ROLE:-}
case $role in
viewer) set -- --include-method POST --include-method DELETE "$@" ;;
'' | anonymous | submitter | admin) ;;
*)
    echo "invalid LLMPROF_ROLE $role; expected anonymous, viewer, submitter or admin" >&2
    exit 2
    ;;
esac
config=$conf/schemathesis.toml
# Every request is refused with one status.
case $role in viewer | anonymous) config=$conf/schemathesis-refused.toml ;; esac
if [ -n "${LLMPROF_TOKEN:-}" ]; then
    set -- --header "Authorization: Bearer $LLMPROF_TOKEN" "$@"
fi

# Streams of events last as long as their run, hence the short timeout. All checks are on without
# `--checks all`, which also turns on those that the settings turn off for one operation.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
SCHEMATHESIS_HOOKS=schemathesis_files PYTHONPATH=$conf LLMPROF_ROLE=$role \
    "$venv/bin/st" --config-file "$config" run "${url%/}/openapi.json" \
    --max-time "${CONTRACT_TEST_SECONDS:-150}" --request-timeout 5 \
    --wait-for-schema 30 --continue-on-failure "$@"
