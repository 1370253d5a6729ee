#!/bin/sh
# What the emulator needs of the system: ip and tc (iproute2), unshare, nsenter and setpriv (util-linux), and for ranks over
# MPI Open MPI's mpirun and library, which mpi4py loads (openmpi-bin); what tests need of it: zsh, groff and a headless
# Chromium. Installs what is missing where that is possible, says so where it is not, and never fails: tests that need it
# skip with the reason, except on CI, where a skipped test is a failure (tests/needs.py).
missing=
for program in ip tc; do command -v $program >/dev/null || missing="$missing iproute2"; done
for program in unshare nsenter setpriv; do command -v $program >/dev/null || missing="$missing util-linux"; done
command -v mpirun >/dev/null || missing="$missing openmpi-bin"
command -v zsh >/dev/null || missing="$missing zsh"
command -v groff >/dev/null || missing="$missing groff"
command -v chromium >/dev/null || command -v google-chrome >/dev/null || missing="$missing chromium"
[ -z "$missing" ] && exit 0
missing=$(printf '%s\n' $missing | sort -u | tr '\n' ' ')
say() { echo "tests need $1; those that do will be skipped" >&2; }
if [ "$(id -u)" != 0 ]; then
    say "$missing(not installed: not root)"
elif command -v apt-get >/dev/null; then
    apt-get -qq update >/dev/null 2>&1
    for package in $missing; do
        apt-get -qq install -y --no-install-recommends "$package" >/dev/null 2>&1 ||
            say "$package (apt-get could not install it)"
    done
elif command -v dnf >/dev/null; then
    # Fedora's Open MPI is not on the PATH until `module load mpi/openmpi-x86_64`.
    dnf -q -y install iproute iproute-tc util-linux openmpi zsh groff chromium ||
        say "iproute, iproute-tc, util-linux, openmpi, zsh, groff and chromium"
else
    say "$missing"
fi
exit 0
