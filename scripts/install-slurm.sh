#!/bin/sh
# Installs Slurm and munge from Debian's packages if they are missing, for the tests that run jobs
# on a cluster of one machine.
#
# Run as root; running it again changes nothing. It starts no daemon: the tests start their own,
# with their own files and ports.
set -eu

report() { printf 'install-slurm: %s\n' "$*"; }
die() { printf 'install-slurm: %s\n' "$*" >&2; exit 1; }

installed() {
    for program in sbatch squeue scancel scontrol slurmctld slurmd munged; do
        command -v "$program" >/dev/null || return 1
    done
}

PATH=$PATH:/usr/sbin:/sbin
if installed; then
    report "Slurm is installed: $(slurmd -V)"
    exit
fi
[ "$(id -u)" -eq 0 ] || die "installing slurm-wlm needs root: run it with sudo"
command -v apt-get >/dev/null || die "no apt-get: install Slurm and munge by other means"
LC_ALL=C apt-cache policy slurm-wlm | grep 'Candidate: [^(]' >/dev/null || apt-get update -q
report "installing slurm-wlm and munge"
DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends slurm-wlm munge
installed || die "the packages are installed, but a program is missing"
report "$(slurmd -V)"
