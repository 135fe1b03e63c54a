#!/usr/bin/env bash
# Checks the dependencies against RustSec's advisories: today's, or if GitHub cannot be reached the
# copy in conf/test/advisories.tar.zst, whose date is printed.
#
#   scripts/check-advisories.sh              checks; needs cargo-deny
#   scripts/check-advisories.sh pin CLONE    copies the advisories of a clone of
#                                            https://github.com/rustsec/advisory-db
set -euo pipefail
cd "$(dirname "$0")/.."
copy=conf/test/advisories.tar.zst
url=https://github.com/rustsec/advisory-db

if [ "${1:-}" = pin ]; then
    clone=${2:?"give the clone's folder"}
    git -C "$clone" archive HEAD crates LICENSE.txt LICENSES | zstd -19 -q -f -o "$copy"
    git -C "$clone" log -1 --format='%H %cI' >"${copy%.tar.zst}.txt"
    echo "pinned: $(cat "${copy%.tar.zst}.txt")"
    exit
fi
if GIT_TERMINAL_PROMPT=0 timeout 20 git ls-remote -q "$url" HEAD >/dev/null 2>&1; then
    exec cargo deny --locked check advisories
fi
read -r commit date <"${copy%.tar.zst}.txt"
echo "$url cannot be reached: checking against its commit ${commit:0:12} of ${date%T*}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Where cargo-deny expects its clone of that address, with its date.
db=$work/db/advisory-db-3157b0e258782691
mkdir -p "$db"
zstd -dcq "$copy" | tar -xf - -C "$db"
export GIT_COMMITTER_DATE=$date GIT_AUTHOR_DATE=$date
git -C "$db" init -q
git -C "$db" add -A
git -C "$db" -c user.name=llmprof -c user.email=llmprof@localhost commit -q -m "$commit"
# Cargo's own tables end where the next starts: the copy's folder and age are added to [advisories].
added="db-path = \"$work/db\"\nmaximum-db-staleness = \"P3650D\""
sed "s|^\[advisories\]\$|&\n$added|" deny.toml >"$work/deny.toml"
grep -q '^db-path' "$work/deny.toml"
cargo deny --locked --offline --config "$work/deny.toml" check advisories
