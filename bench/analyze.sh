#!/bin/sh
# Measures `llmprof analyze` on a capture repeated along the time axis, next to `nsys stats` if that
# is installed.
#
#   bench/analyze.sh CAPTURE.sqlite [TIMES]
#
# The DeepSeek decoder's capture, 100 times, has 1.3 M kernels and 3.3 M API calls.
#
# Needs python3, GNU time (/usr/bin/time) and a release build (LLMPROF=path for another one).
set -eu
capture=$1
times=${2:-100}
llmprof=${LLMPROF:-target/release/llmprof}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
big="$work/repeated.sqlite"

python3 "$(dirname "$0")/repeat.py" "$capture" "$big" "$times"
ls -l "$big" | awk '{ printf "file: %.0f MB\n", $5 / 1e6 }'

measure() {
    for try in 1 2 3; do
        /usr/bin/time -f "$1, try $try: %e s wall, %U s user, %S s system, %M kB" \
            sh -c "$2" >/dev/null
    done
}
measure "llmprof analyze" "'$llmprof' analyze '$big' --out '$work/out' --format json"
if command -v nsys >/dev/null; then
    # Names changed after 2022.4; that version projects ranges one by one, later ones sum them.
    if nsys stats --help-reports 2>/dev/null | grep cuda_gpu_kern_sum >/dev/null; then
        names="cuda_gpu_kern_sum cuda_api_sum nvtx_gpu_proj_sum nvtx_kern_sum"
    else
        names="gpukernsum cudaapisum nvtxgpuproj nvtxkernsum"
    fi
    reports=$(printf -- '--report %s ' $names)
    nsys --version
    # Some versions write indices into the file, so they get a copy.
    cp "$big" "$work/peer.sqlite"
    measure "nsys stats" "nsys stats --quiet --format csv $reports '$work/peer.sqlite'"
else
    echo "nsys stats: not installed here, not measured"
fi
