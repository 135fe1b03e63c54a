#!/bin/sh
# Measures `llmprof align` on a pair of captures, both repeated along the time axis.
#
#   bench/align.sh MOCK.sqlite E2E.sqlite [TIMES]    e.g. the Llama's pair, 66 times: 1.3 M kernels
#
# Needs python3, GNU time (/usr/bin/time) and a release build (LLMPROF=path for another one).
set -eu
mock=$1
e2e=$2
times=${3:-66}
llmprof=${LLMPROF:-target/release/llmprof}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for side in mock e2e; do
    eval "capture=\$$side"
    echo "$side:"
    python3 "$(dirname "$0")/repeat.py" "$capture" "$work/$side.sqlite" "$times"
    ls -l "$work/$side.sqlite" | awk '{ printf "file: %.0f MB\n", $5 / 1e6 }'
done

for stage in prefill decode; do
    for try in 1 2 3; do
        /usr/bin/time -f "$stage, try $try: %e s wall, %U s user, %S s system, %M kB" \
            "$llmprof" align --mock "$work/mock.sqlite" --e2e "$work/e2e.sqlite" --stage $stage \
            --range decoder.self_attn --include-ranges measured --format json >"$work/$stage.json"
    done
    head -c 30 "$work/$stage.json" | tr -d '\n'
    echo
done
