#!/usr/bin/env bash
# Tests a running service against its own contract with schemathesis: every operation, valid and invalid requests, all checks.
# usage: scripts/contract-test.sh http://127.0.0.1:8080 [further options of `st run`]
# LLMPROF_TOKEN is shown with each request. LLMPROF_ROLE says what it may: as `viewer` every write must be refused, as `nobody` (without a
# token, where the service asks for one) everything that is not for everybody; else the service must be one that nothing else needs, for
# runs are queued, cancelled and deleted. CONTRACT_TEST_SECONDS is how long it goes on.
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
'' | nobody | submitter | admin) ;;
*) echo "LLMPROF_ROLE: $role is none of nobody, viewer, submitter, admin" >&2 && exit 2 ;;
esac
config=$conf/schemathesis.toml
# Whatever is sent is refused, and for one reason.
case $role in viewer | nobody) config=$conf/schemathesis-refused.toml ;; esac
if [ -n "${LLMPROF_TOKEN:-}" ]; then set -- --header "Authorization: Bearer $LLMPROF_TOKEN" "$@"; fi

# A stream of events lasts as long as its run, so no answer is waited for longer than a few seconds.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
SCHEMATHESIS_HOOKS=schemathesis_files PYTHONPATH=$conf LLMPROF_ROLE=$role "$venv/bin/st" --config-file "$config" run "${url%/}/openapi.json" --checks all --max-time "${CONTRACT_TEST_SECONDS:-150}" --request-timeout 5 \
    --wait-for-schema 30 --continue-on-failure "$@"
