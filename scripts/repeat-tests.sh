#!/usr/bin/env bash
# Runs all tests several times and prints a row for each: a test that passes or fails by load is a
# defect of the test.
#
#   scripts/repeat-tests.sh RUNS [BUSY]      BUSY loops take processor time meanwhile (default 0)
#
# Fails if a run fails. The names of failed and flaky tests follow each row.
set -euo pipefail
cd "$(dirname "$0")/.."
runs=${1:?usage: repeat-tests.sh RUNS [BUSY]} busy=${2:-0}
log=$(mktemp)
trap 'jobs -p | xargs -r kill 2>/dev/null || true; rm -f "$log"' EXIT
for _ in $(seq "$busy"); do sh -c 'while :; do :; done' & done
export NEXTEST_PROFILE=ci
failed=0
printf '| run | busy loops | passed | flaky | failed | seconds |\n|---:|---:|---:|---:|---:|---:|\n'
for run in $(seq "$runs"); do
    started=$SECONDS
    just test >"$log" 2>&1 || failed=$((failed + 1))
    count() { grep -o "[0-9]* $1" <<<"$summary" | cut -d' ' -f1 || true; }
    summary=$(grep 'Summary \[' "$log" | tail -1 || true)
    [ -n "$summary" ] || { tail -20 "$log" >&2; exit 1; }
    passed=$(count passed) flaky=$(count flaky) wrong=$(count failed)
    printf '| %s | %s | %s | %s | %s | %s |\n' "$run" "$busy" "${passed:-0}" "${flaky:-0}" \
        "${wrong:-0}" $((SECONDS - started))
    grep -E '^ +(FAIL|TIMEOUT|FLAKY)' "$log" | sort -u || true
done
[ "$failed" = 0 ] || { echo "$failed of $runs runs failed" >&2; exit 1; }
