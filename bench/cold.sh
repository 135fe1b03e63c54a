#!/usr/bin/env bash
# Measures the README's two commands from nothing: CPU time and wall time.
#
#   bench/cold.sh [install|test]...      both without arguments
#
# Sources are downloaded first, so that the network is not measured. Builds go to an empty target
# folder, the installed programs to an empty root; both are removed. Wall time means something only
# on an idle machine: the load before each command is printed with it.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo fetch --locked --quiet
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CARGO_TARGET_DIR="$work/target" CARGO_TERM_COLOR=never TIMEFORMAT='%R %U %S'

measure() {
    local name=$1 load
    shift
    rm -rf "$CARGO_TARGET_DIR"
    read -r load _ </proc/loadavg
    if ! { time "$@" >"$work/log" 2>&1; } 2>"$work/time"; then
        tail -20 "$work/log" >&2
        echo "$name failed" >&2
        exit 1
    fi
    tail -1 "$work/time" | awk -v name="$name" -v load="$load" -v cores="$(nproc)" '{
        printf "%-32s %8.1f %8.1f %10s %6s\n", name, ($2 + $3) / 60, $1 / 60, load, cores }'
}

rustc --version
printf '%-32s %8s %8s %10s %6s\n' command cpu_min wall_min load_before cores
[ $# -gt 0 ] || set -- install test
for what in "$@"; do
    case $what in
    install)
        measure 'cargo install --path . --locked' \
            cargo install --path . --locked --root "$work/root"
        ls -l "$work/root/bin" | awk '$9 { printf "  %-30s %8.1f MB\n", $9, $5 / 1e6 }'
        ;;
    test) measure 'cargo test' cargo test --locked ;;
    *) echo "unknown command $what: install or test" >&2; exit 2 ;;
    esac
done
