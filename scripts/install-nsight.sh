#!/bin/sh
# Installs NVIDIA Nsight Systems (`nsys`) from Debian's non-free packages if it is missing, and
# links its importer.
#
# Debian installs the collector and the importer in different folders; without the link, `nsys
# profile` exits with 0 and leaves a .qdstrm that nothing reads. Run as root; running it again
# changes nothing. It adds one file to apt's sources (non-free, at the mirror that the machine
# already uses) and installs one package with its dependencies. It never changes an installed GPU
# driver, and never replaces an nsys that works.
set -eu

report() { printf 'install-nsight: %s\n' "$*"; }
die() { printf 'install-nsight: %s\n' "$*" >&2; exit 1; }

package=nsight-systems
instead="install nsys from NVIDIA's packages (nsight-systems-cli)"
sources=/etc/apt/sources.list.d/llmprof-non-free.sources

need_root() { [ "$(id -u)" -eq 0 ] || die "$1 needs root: run it with sudo"; }

# The mirror of this release's main packages, from apt, which reads every form of source.
mirror() {
    apt-get indextargets --format '$(ORIGIN) $(CODENAME) $(COMPONENT) $(REPO_URI)' \
        'Created-By: Packages' |
        awk -v codename="$1" '$1 == "Debian" && $2 == codename && $3 == "main" { print $4; exit }'
}

has_candidate() { LC_ALL=C apt-cache policy "$package" | grep 'Candidate: [^(]' >/dev/null; }

add_non_free() {
    . /etc/os-release
    [ "${ID:-}" = debian ] || die "this is ${PRETTY_NAME:-not Debian}: $instead"
    uri=$(mirror "$VERSION_CODENAME")
    [ -n "$uri" ] || die "no Debian mirror for $VERSION_CODENAME; add 'non-free' to apt's sources"
    report "adding non-free of $uri to apt's sources ($sources)"
    {
        printf 'Types: deb\nURIs: %s\nSuites: %s\n' "$uri" "$VERSION_CODENAME"
        printf 'Components: contrib non-free\n'
        keyring=/usr/share/keyrings/debian-archive-keyring.gpg
        if [ -e "$keyring" ]; then printf 'Signed-By: %s\n' "$keyring"; fi
    } >"$sources"
    apt-get update -q
}

install_nsys() {
    need_root "installing $package"
    command -v apt-get >/dev/null || die "no apt-get: $instead"
    has_candidate || apt-get update -q
    has_candidate || add_non_free
    has_candidate || die "apt has no package $package, non-free included"
    report "installing $package"
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$package"
}

# Links the importer to where Debian's collector looks for it.
link_importer() {
    arch=$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null ||
        printf '%s-linux-gnu' "$(uname -m)")
    importer=/usr/lib/nsight-systems/host-linux-x64
    link=/usr/lib/$arch/nsight-systems/host-linux-x64
    if [ ! -d "$importer" ] || [ -e "$link" ]; then return; fi
    need_root "linking the importer"
    report "linking $link to $importer"
    mkdir -p "${link%/*}"
    ln -s "$importer" "$link"
}

if command -v nsys >/dev/null; then
    report "nsys is installed: $(command -v nsys)"
else
    install_nsys
fi
link_importer
report "$(nsys --version)"
