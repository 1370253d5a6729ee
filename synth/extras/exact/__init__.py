"""k-synchronous synthesis: exact schedules for (chunks, steps, rounds), after SCCL.

SCCL: Cai et al., PPoPP 2021.
"""
