# Tasks of developers; CI runs `just check`, `just simulate` and `just cuda`.

target := env('CARGO_TARGET_DIR', 'target') / 'debug'

# Checks everything: format, lints, tests, links, licences.
check: fmt words clippy test linkage deny

fmt:
    cargo fmt --all --check

# Words and line widths, by scripts/words.txt.
words:
    scripts/check-words.py

clippy:
    cargo clippy --locked --features simulation --all-targets -- -D warnings

test:
    cargo test --locked --features simulation --no-run
    cargo test --locked --features simulation --lib --bins --test it
    # One at a time: the same seed gives the same events where no thread waits long for a core.
    cargo test --locked --features simulation --test simulator -- --test-threads 1

# Random schedules of kills, power cuts and other faults, with the code of the service on simulated
# time, disks and processes. Of a single one the events are shown: `just simulate 1 SEED`.
simulate schedules="2000" first="0":
    SIMULATOR_SCHEDULES={{schedules}} SIMULATOR_FIRST={{first}} cargo test --locked --features simulation --test simulator -- --nocapture --test-threads 1

# The rates of gates that specs/series.md states, over many simulations.
gates:
    cargo test --locked --release --features simulation --lib published_rates -- --ignored --nocapture

# Without CUDA, no program is linked to it.
linkage:
    scripts/check-linkage.sh none {{target}}/llmprof
    scripts/check-linkage.sh none {{target}}/model-runner

# Licences, sources, duplicate versions, and advisories of today or of the pinned copy.
deny:
    cargo deny --locked check licenses bans sources
    scripts/check-advisories.sh

# The build for GPUs: lints and links, and CUDA in the runner alone. Needs no GPU, but nvcc.
cuda:
    @command -v nvcc >/dev/null || { echo 'no nvcc on PATH: eval "$(scripts/cuda-toolchain.sh)" installs one' >&2; exit 1; }
    cargo clippy --locked --features cuda --all-targets -- -D warnings
    cargo build --locked --features cuda
    scripts/check-linkage.sh none {{target}}/llmprof
    scripts/check-linkage.sh all {{target}}/model-runner

# Writes the contract again, after a change of the API.
write-contract:
    cargo run --locked --quiet --bin llmprof -- openapi > contracts/profile.yaml
