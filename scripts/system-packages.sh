#!/bin/sh
# What the emulator needs of the system: ip and tc (iproute2), unshare and nsenter (util-linux). Installs what is missing
# where that is possible, says so where it is not, and never fails: tests that need them skip with the reason.
missing=
for program in ip tc; do command -v $program >/dev/null || missing="$missing iproute2"; done
for program in unshare nsenter; do command -v $program >/dev/null || missing="$missing util-linux"; done
[ -z "$missing" ] && exit 0
missing=$(printf '%s\n' $missing | sort -u | tr '\n' ' ')
if [ "$(id -u)" != 0 ]; then
    echo "the emulator needs $missing(not installed: not root); its tests will be skipped" >&2
elif command -v apt-get >/dev/null; then
    { apt-get -qq update && apt-get -qq install -y $missing; } >/dev/null 2>&1 ||
        echo "the emulator needs $missing(apt-get could not install it); its tests will be skipped" >&2
elif command -v dnf >/dev/null; then
    dnf -q -y install iproute iproute-tc util-linux ||
        echo "the emulator needs iproute, iproute-tc and util-linux; its tests will be skipped" >&2
else
    echo "the emulator needs $missing; its tests will be skipped" >&2
fi
exit 0
