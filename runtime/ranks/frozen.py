"""Exclude everything imported so far from garbage collection, in a process that is about to fork.

A collection in a forked process writes to each object's page, and so copies nearly all memory it
shares.
"""

import gc

gc.collect()
gc.freeze()
