"""Read Linux's files below /sys and /proc, of this machine or a captured one."""
