#!/bin/sh
# What the emulator needs of the system: ip and tc (iproute2), unshare, nsenter and setpriv (util-linux), and for ranks over
# MPI Open MPI's mpirun and library, which mpi4py loads (openmpi-bin). Installs what is missing where that is possible,
# says so where it is not, and never fails: tests that need them skip with the reason.
missing=
for program in ip tc; do command -v $program >/dev/null || missing="$missing iproute2"; done
for program in unshare nsenter setpriv; do command -v $program >/dev/null || missing="$missing util-linux"; done
command -v mpirun >/dev/null || missing="$missing openmpi-bin"
[ -z "$missing" ] && exit 0
missing=$(printf '%s\n' $missing | sort -u | tr '\n' ' ')
say() { echo "the emulator and MPI need $1; their tests will be skipped" >&2; }
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
    dnf -q -y install iproute iproute-tc util-linux openmpi || say "iproute, iproute-tc, util-linux and openmpi"
else
    say "$missing"
fi
exit 0
