#!/bin/sh
# Installs Slurm and munge from Debian's packages where they are missing, for the tests that run jobs on a cluster of one machine.
#
# Run as root; running it again changes nothing. It starts no daemon: the tests start their own, with their own files and ports.
set -eu

say() { printf 'install-slurm: %s\n' "$*"; }
die() { printf 'install-slurm: %s\n' "$*" >&2; exit 1; }

here() { for program in sbatch squeue scancel scontrol slurmctld slurmd munged; do command -v "$program" >/dev/null || return 1; done; }

PATH=$PATH:/usr/sbin:/sbin
if here; then
    say "Slurm is here already: $(slurmd -V)"
    exit
fi
[ "$(id -u)" -eq 0 ] || die "installing slurm-wlm needs root: run it with sudo"
command -v apt-get >/dev/null || die "no apt here: install Slurm and munge from this system's packages instead"
LC_ALL=C apt-cache policy slurm-wlm | grep -q 'Candidate: [^(]' || apt-get update -q
say "installing slurm-wlm and munge"
DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends slurm-wlm munge
here || die "the packages are installed, and a program is missing"
say "$(slurmd -V)"
