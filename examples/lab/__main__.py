"""Run the lab: `python -m examples.lab`; command.py has its options."""

import sys

from .command import main

sys.exit(main())
