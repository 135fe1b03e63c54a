#!/bin/sh
# Measures `llmprof analyze` on a capture repeated along the time axis, and `nsys stats` beside it where it is installed.
#
#   bench/analyze.sh CAPTURE.sqlite [TIMES]      e.g. the DeepSeek decoder's, 100 times: 1.3 M kernels, 3.3 M API calls
#
# Needs python3, GNU time (/usr/bin/time) and a release build (LLMPROF=path to try another one). Nothing is printed that was not measured here.
set -eu
capture=$1
times=${2:-100}
llmprof=${LLMPROF:-target/release/llmprof}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
big="$work/repeated.sqlite"

# Every repetition is moved along the time axis by the capture's length, and its correlation ids by their largest, so that it joins to its
# own calls alone. Strings, domains and what the tool says of itself stay as they are.
python3 - "$capture" "$big" "$times" <<'PYTHON'
import shutil, sqlite3, sys
source, target, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
shutil.copy(source, target)
db = sqlite3.connect(target)
db.execute("pragma journal_mode = off")
db.execute("pragma synchronous = off")
names = {name for (name,) in db.execute("select name from sqlite_master where type = 'table'")}
tables = [t for t in ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY",
                      "CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "NVTX_EVENTS") if t in names]
spans = [db.execute(f"select min(start), max(coalesce(end, start)) from {t} where start > 0").fetchone() for t in tables]
length = max(end for _, end in spans) - min(start for start, _ in spans) + 1_000_000
ids = db.execute("select max(correlationId) from CUPTI_ACTIVITY_KIND_RUNTIME").fetchone()[0] + 1
for table in tables:
    columns = [row[1] for row in db.execute(f"pragma table_info({table})")]
    moved = {"start": "start + :t", "end": "end + :t", "correlationId": "correlationId + :c"}
    select = ", ".join(f'{moved.get(c, chr(34) + c + chr(34))}' for c in columns)
    only = " where eventType in (59, 60)" if table == "NVTX_EVENTS" else ""
    db.execute(f"create temp table once as select * from {table}{only}")
    for n in range(1, times):
        db.execute(f"insert into {table} select {select} from once", {"t": n * length, "c": n * ids})
    db.execute("drop table once")
db.commit()
for table in tables:
    print(f"{table}: {db.execute(f'select count(*) from {table}').fetchone()[0]:,} rows")
PYTHON
ls -l "$big" | awk '{ printf "file: %.0f MB\n", $5 / 1e6 }'

measure() {
    for try in 1 2 3; do
        /usr/bin/time -f "$1, try $try: %e s wall, %U s user, %S s system, %M kB" sh -c "$2" >/dev/null
    done
}
measure "llmprof analyze" "'$llmprof' analyze '$big' --out '$work/out' --format json"
if command -v nsys >/dev/null; then
    # Names changed after 2022.4, and that version projects ranges one by one where later ones sum them.
    if nsys stats --help-reports 2>/dev/null | grep -q cuda_gpu_kern_sum; then
        names="cuda_gpu_kern_sum cuda_api_sum nvtx_gpu_proj_sum nvtx_kern_sum"
    else
        names="gpukernsum cudaapisum nvtxgpuproj nvtxkernsum"
    fi
    reports=$(printf -- '--report %s ' $names)
    nsys --version
    # Some versions write indices into the file: theirs is a copy.
    cp "$big" "$work/peer.sqlite"
    measure "nsys stats" "nsys stats --quiet --format csv $reports '$work/peer.sqlite'"
else
    echo "nsys stats: not installed here, not measured"
fi
