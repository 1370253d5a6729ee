"""Questions to Linux: the files below /sys and /proc, of this machine or of a captured one."""
