#!/bin/sh
# Installs NVIDIA Nsight Systems (`nsys`) from Debian's non-free packages where it is missing, and joins its two halves.
#
# Debian ships the collector and the importer in different folders; without the link made below `nsys profile` exits 0 and
# leaves a .qdstrm that nothing reads. Run as root; running it again changes nothing. It adds one file to apt's sources
# (non-free, at the mirror that the machine already uses) and installs one package with what it needs.
# It never touches a GPU driver that is installed, and never replaces an nsys that works.
set -eu

say() { printf 'install-nsight: %s\n' "$*"; }
die() { printf 'install-nsight: %s\n' "$*" >&2; exit 1; }

package=nsight-systems
sources=/etc/apt/sources.list.d/llmprof-non-free.sources

need_root() { [ "$(id -u)" -eq 0 ] || die "$1 needs root: run it with sudo"; }

# The mirror that serves this release's main packages: asked of apt, which reads every form of source.
mirror() {
    apt-get indextargets --format '$(ORIGIN) $(CODENAME) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
        awk -v codename="$1" '$1 == "Debian" && $2 == codename && $3 == "main" { print $4; exit }'
}

has_candidate() { LC_ALL=C apt-cache policy "$package" | grep -q 'Candidate: [^(]'; }

add_non_free() {
    . /etc/os-release
    [ "${ID:-}" = debian ] || die "this is ${PRETTY_NAME:-no Debian}: install nsys from NVIDIA's packages (nsight-systems-cli) instead"
    uri=$(mirror "$VERSION_CODENAME")
    [ -n "$uri" ] || die "apt knows no Debian mirror for $VERSION_CODENAME: add 'non-free' to its sources, then run this again"
    say "adding non-free of $uri to apt's sources ($sources)"
    {
        printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: contrib non-free\n' "$uri" "$VERSION_CODENAME"
        keyring=/usr/share/keyrings/debian-archive-keyring.gpg
        if [ -e "$keyring" ]; then printf 'Signed-By: %s\n' "$keyring"; fi
    } >"$sources"
    apt-get update -q
}

install_nsys() {
    need_root "installing $package"
    command -v apt-get >/dev/null || die "no apt here: install nsys from NVIDIA's packages (nsight-systems-cli) instead"
    has_candidate || apt-get update -q
    has_candidate || add_non_free
    has_candidate || die "apt has no package $package, non-free included"
    say "installing $package"
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$package"
}

# Where Debian's collector looks for the importer, and where Debian puts it.
join_halves() {
    arch=$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || printf '%s-linux-gnu' "$(uname -m)")
    importer=/usr/lib/nsight-systems/host-linux-x64
    link=/usr/lib/$arch/nsight-systems/host-linux-x64
    if [ ! -d "$importer" ] || [ -e "$link" ]; then return; fi
    need_root "linking the importer"
    say "linking $link to $importer"
    mkdir -p "${link%/*}"
    ln -s "$importer" "$link"
}

if command -v nsys >/dev/null; then
    say "nsys is here already: $(command -v nsys)"
else
    install_nsys
fi
join_halves
say "$(nsys --version)"
