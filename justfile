# What a developer runs; `just check` is what CI runs.

# Checks everything: format, lints, tests, contract, licences.
check: fmt clippy test contract deny

fmt:
    cargo fmt --all --check

clippy:
    cargo clippy --locked --all-targets -- -D warnings

test:
    cargo test --locked

# The contract in the repository is the one that the code serves.
contract:
    cargo run --locked --quiet --bin llmprof -- openapi | diff -u contracts/profile.yaml -

# Licences, sources and duplicate versions; advisories need the network and are asked for apart.
deny:
    cargo deny --locked check licenses bans sources

advisories:
    cargo deny --locked check advisories

# Writes the contract anew, after a change of the API.
write-contract:
    cargo run --locked --quiet --bin llmprof -- openapi > contracts/profile.yaml
