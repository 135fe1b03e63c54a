# Sourced by the scripts in this folder. serve PROGRAM FOLDER DATA: starts a service on loopback with
# its logs in FOLDER, waits until it is ready, and sets $service and $base, its address. On failure
# it prints the log and exits with 1.
serve() {
    local program=$1 folder=$2 data=$3
    : >"$folder/service.out"
    "$program" serve --listen 127.0.0.1:0 --data "$data" \
        >"$folder/service.out" 2>"$folder/service.log" &
    service=$!
    for _ in $(seq 300); do
        base=$(sed -n 's/^listening on //p' "$folder/service.out")
        [ -z "$base" ] || ! curl -sf "$base/readyz" >/dev/null || return 0
        kill -0 "$service" 2>/dev/null || break
        sleep 0.1
    done
    echo "the service did not become ready" >&2
    cat "$folder/service.log" >&2
    exit 1
}
