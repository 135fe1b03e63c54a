# Tasks of developers; CI runs what `just check-all`, `just simulate` and `just cuda` do.

target := env('CARGO_TARGET_DIR', 'target') / 'debug'

# Tests wait for processes and for limits of time: three at a time per core.
export NEXTEST_TEST_THREADS := env('NEXTEST_TEST_THREADS', `echo $((3 * $(nproc)))`)

# Checks a change in minutes: format, lints, licences, and the tests but those of whole services that
# run, fail and recover.
check: fmt words clippy quick examples linkage deny

# The same with all tests.
check-all: fmt words clippy test examples linkage deny

fmt:
    cargo fmt --all --check

# Words and line widths, by scripts/words.txt.
words:
    scripts/check-words.py

clippy:
    cargo clippy --locked --workspace --features simulation --all-targets -- -D warnings

# All tests but the simulator's many schedules; `just test NAME` runs those with NAME in their names.
test *names:
    cargo nextest run --locked --workspace --features simulation {{names}}

# All tests to their full extent: each fault, kill, power cut and changed capture, which take `just test`
# too long.
thorough *names:
    LLMPROF_THOROUGH=1 cargo nextest run --locked --workspace --features simulation {{names}}

# Captures changed at random, CASES for each property; CI tries the same few each time.
explore cases="400":
    PROPTEST_CASES={{cases}} just test _of_a_changed_capture _on_a_changed_capture

# The tests of `just check`.
quick:
    cargo nextest run --locked --workspace --features simulation --profile quick

# Examples in the documentation of the code, those that must not compile among them.
examples:
    cargo test --locked --doc --package llmprof-core

# The slowest tests of the last `NEXTEST_PROFILE=ci just test`.
slowest count="40":
    scripts/slowest-tests.py target/nextest/ci/junit.xml {{count}}

# All tests RUNS times, next to BUSY loops: `just repeat 10 4`.
repeat runs busy="0":
    scripts/repeat-tests.sh {{runs}} {{busy}}

# Random schedules of kills, power cuts and other faults, with the code of the service on simulated
# time, disks and processes. Of a single one the events are shown: `just simulate 1 SEED`.
simulate schedules="2000" first="0":
    SIMULATOR_SCHEDULES={{schedules}} SIMULATOR_FIRST={{first}} cargo test --locked --workspace --features simulation --test simulator -- --nocapture every_schedule

# The rates of gates that specs/series.md states, over many simulations.
gates:
    cargo test --locked --release --package llmprof-analyze published_rates -- --ignored --nocapture

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
    cargo clippy --locked --package llmprof-runner --features cuda --all-targets -- -D warnings
    cargo build --locked --package llmprof --no-default-features --features cuda
    scripts/check-linkage.sh all {{target}}/model-runner

# Builds the image and executes a run in it. CI does the same with the programs that it has built.
image:
    scripts/check-image.sh

# Writes the contract again, after a change of the API.
write-contract:
    cargo run --locked --quiet --bin llmprof -- openapi > contracts/profile.yaml
