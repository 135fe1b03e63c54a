#!/usr/bin/env bash
# Builds the image of the Dockerfile with podman and uses it as a user would: a token, the service
# without privileges on a read-only root, a run, its report, and a clean stop.
#
#   scripts/check-image.sh [CACHE [PROGRAMS]]
#
# Run as root on Debian. No registry of images is needed: the base is installed by debootstrap, and
# Rust is this machine's. CACHE (default ~/.cache/llmprof) keeps the base; cargo's target folder, if
# CARGO_TARGET_DIR is set, and its registry are mounted: a warm build takes minutes. A folder
# PROGRAMS with `llmprof` and `model-runner` takes the place of the build.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${1:-$HOME/.cache/llmprof} programs=${2:-}
base=localhost/llmprof-base rust=localhost/llmprof-rust image=localhost/llmprof:check
report() { printf 'check-image: %s\n' "$*"; }
for tool in podman debootstrap; do
    command -v "$tool" >/dev/null || { report "needs $tool: apt-get install $tool" >&2; exit 1; }
done
data=$(mktemp -d) toolchain=$(rustc --print sysroot) port=18481 token=
container=llmprof-check-$$
cleanup() {
    podman rm --force "$container" >/dev/null 2>&1 || true
    # Without overlays each layer is a copy of the whole image.
    podman image rm --force "$image" >/dev/null 2>&1 || true
    podman image prune --force >/dev/null 2>&1 || true
    rm -rf "$data"
}
trap cleanup EXIT

rootfs=$cache/image-base.tar
if [ ! -f "$rootfs" ]; then
    format='$(ORIGIN) $(COMPONENT) $(REPO_URI)'
    mirror=$(apt-get indextargets --format "$format" 'Created-By: Packages' |
        awk '$1 == "Debian" && $2 == "main" { print $3; exit }')
    report "installing the base from $mirror"
    debootstrap --variant=minbase bookworm "$data/base" "$mirror" >"$data/log" ||
        { tail "$data/log"; exit 1; }
    tar -C "$data/base" -cf "$rootfs.part" .
    mv "$rootfs.part" "$rootfs"
    rm -rf "$data/base"
fi
podman image exists "$base" || podman import --quiet "$rootfs" "$base" >/dev/null
# What the Dockerfile takes from the image of Rust.
if ! podman image exists "$rust"; then
    mkdir -p "$data/rust/usr/local/cargo/bin" "$data/rust/usr/local/rustup"
    cp -a "$toolchain/bin/." "$data/rust/usr/local/cargo/bin/"
    cp -a "$toolchain/lib" "$data/rust/usr/local/cargo/lib"
    tar -C "$data/rust" -c . | podman import --quiet - "$rust" >/dev/null
    rm -rf "$data/rust"
fi

# A warm target folder and registry, mounted at their own paths, which build scripts have recorded.
mounts=()
if [ -n "${CARGO_TARGET_DIR:-}" ]; then
    mkdir -p "$CARGO_TARGET_DIR"
    mounts+=(--volume "$CARGO_TARGET_DIR:$CARGO_TARGET_DIR")
    mounts+=(--build-arg "CARGO_TARGET_DIR=$CARGO_TARGET_DIR")
fi
[ -z "$programs" ] || mounts+=(--volume "$programs:$programs:ro" --build-arg "PROGRAMS=$programs")
home=${CARGO_HOME:-$HOME/.cargo}
mkdir -p "$home/registry"
mounts+=(--volume "$home/registry:$home/registry" --build-arg CARGO_HOME="$home")
# chroot: if cgroups cannot be delegated, as in a virtual machine of CI; docker: SHELL and
# HEALTHCHECK.
podman build --quiet --format docker --isolation chroot --network host "${mounts[@]}" \
    --build-arg RUST="$rust" --build-arg PROFILE=dev --build-arg SOURCE="$PWD" \
    --build-arg BUILD_BASE="$base" --build-arg BASE="$base" --tag "$image" . >"$data/log" 2>&1 ||
    { tail -40 "$data/log"; exit 1; }
size=$(podman image inspect --format '{{.Size}}' "$image")
report "built: $(awk '{ printf "%.0f MB", $1 / 1e6 }' <<<"$size")"

# Without any privilege and with a read-only root: by podman if it can start containers, else in the
# image's files by chroot. The limits are this shell's, because raising them takes a capability.
limits=(--ulimit "nofile=$(ulimit -Sn):$(ulimit -Hn)" --ulimit nproc=4096:4096)
run=(podman run "${limits[@]}" --cgroups disabled --network host --read-only --cap-drop all
    --security-opt no-new-privileges --tmpfs /tmp:exec,mode=1777)
listen=LLMPROF__SERVER__LISTEN=127.0.0.1:$port service=
if "${run[@]}" --rm "$image" --version >"$data/try" 2>&1; then
    engine=podman
    trap 'cleanup; podman volume rm "$container" >/dev/null 2>&1 || true' EXIT
    contained() { "${run[@]}" --volume "$container:/data" --env "$listen" "$@"; }
    in_image() { contained --rm "$image" "$@"; }
    start() { contained --name "$container" "$image" 2>"$data/log" & service=$!; }
    stop() { podman stop --time 30 "$container" >/dev/null; }
else
    engine=chroot
    report "podman starts no container here ($(tail -1 "$data/try")): using chroot"
    # unshare ignores SIGTERM, and its child ends with it.
    unmount() {
        { pkill -KILL -P "$service"; kill -KILL "$service"; } 2>/dev/null || true
        podman image unmount "$image" >/dev/null
    }
    trap 'unmount; cleanup' EXIT
    files=$(podman image mount "$image")
    config() { podman image inspect --format "{{range .Config.$1}}{{println .}}{{end}}" "$image"; }
    mapfile -t entry < <(config Entrypoint | grep .)
    mapfile -t default < <(config Cmd | grep .)
    mapfile -t variables < <(config Env | grep .)
    user=$(podman image inspect --format '{{.Config.User}}' "$image")
    mkdir "$data/root" "$data/volume"
    chmod 755 "$data"
    chown "$user" "$data/volume"
    mount_and_run='mount --bind "$1" "$2" && mount -o remount,ro,bind "$2" &&
        mount -t proc proc "$2/proc" && mount --rbind /dev "$2/dev" &&
        mount -t tmpfs -o mode=1777 tmpfs "$2/tmp" && mount --bind "$3" "$2/data" &&
        shift 3 && exec chroot "$@"'
    in_image() {
        unshare --mount --pid --fork --kill-child sh -c "$mount_and_run" sh \
            "$files" "$data/root" "$data/volume" "$data/root" \
            setpriv --reuid "${user%:*}" --regid "${user#*:}" --clear-groups --no-new-privs \
            --bounding-set=-all --inh-caps=-all \
            env -i --chdir=/data "${variables[@]}" "$listen" "${entry[@]}" "$@"
    }
    start() { in_image "${default[@]}" 2>"$data/log" & service=$!; }
    stop() { pkill -TERM -P "$(pgrep -P "$service")" || pkill -TERM -P "$service"; }
fi
token=$(in_image token create --role submitter --name check | grep -o 'llmprof_[0-9a-f]*')
start
logs() { tail -20 "$data/log"; }
call() { curl -sf --max-time 10 --header "Authorization: Bearer $token" "$@"; }
wait_for() {
    local what=$1 tries=$2
    shift 2
    until "$@"; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || { logs; report "$what: not in time" >&2; exit 1; }
        sleep 0.5
    done
}
wait_for "the service is ready" 60 curl -sf -o /dev/null "http://127.0.0.1:$port/readyz"
[ "$(curl -s -o /dev/null -w '%{http_code}' "http://127.0.0.1:$port/runs")" = 401 ] ||
    { report "a request without a token is served" >&2; exit 1; }
request='{"model": "deepseek-ocr-tiny", "mode": "basic", "device": "cpu"}'
id=$(call "http://127.0.0.1:$port/runs" --json "$request" |
    sed -n 's/.*"run_id": *"\([^"]*\)".*/\1/p')
[ -n "$id" ] || { logs; report "the run was not accepted" >&2; exit 1; }
state() { call "http://127.0.0.1:$port/runs/$id" | grep -o '"state": *"[a-z]*"' | head -1 | cut -d'"' -f4; }
ended() { case $(state) in succeeded|failed|partial|cancelled) ;; *) false ;; esac; }
wait_for "the run" 240 ended
[ "$(state)" = succeeded ] || { call "http://127.0.0.1:$port/runs/$id"; logs; exit 1; }
call --header 'Accept: text/markdown' "http://127.0.0.1:$port/runs/$id/report" | grep 'Per-Stage Timings' >/dev/null ||
    { report "the report has no timings" >&2; exit 1; }
stop
code=0
wait "$service" || code=$?
[ "$code" = 0 ] || { logs; report "the service ended with $code after SIGTERM" >&2; exit 1; }
report "by $engine: a run succeeded without privileges, and the service stopped cleanly"
