"""k-synchronous synthesis: exact schedules for (chunks, steps, rounds), after SCCL.

SCCL: Cai et al., PPoPP 2021. In one round a link carries one chunk for each unit of its bandwidth;
a step lasts one round or more.
"""
