"""Imported last by a process from which others are forked: what it has imported is not looked
through for garbage again.

A forked process that looks through it writes to each object's page, and so copies nearly all that
it shares.
"""

from __future__ import annotations

import gc

gc.collect()
gc.freeze()
