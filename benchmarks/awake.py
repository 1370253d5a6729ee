"""Run a command while programs of the lowest priority keep all cores from idling.

    python -m benchmarks awake python -m benchmarks carry_on carry_on.jsonl --programs calls

Emulated links are slow, so ranks mostly wait, and some virtual machines slow down when they idle:
one needs 0.3 s instead of 2 ms to copy 16 MB after a pause of a second. Other programs always go
first (SCHED_IDLE, Linux). The exit code is the command's.
"""

import os
import subprocess
import sys


def main() -> int:
    """Run the command line after this script's name, and return its exit code."""
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        return 0 if len(sys.argv) > 1 else 2
    spin = "import os; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"
    spinning = [subprocess.Popen([sys.executable, "-c", spin]) for _ in os.sched_getaffinity(0)]
    try:
        return subprocess.run(sys.argv[1:], check=False).returncode
    finally:
        for process in spinning:
            process.kill()


if __name__ == "__main__":
    sys.exit(main())
