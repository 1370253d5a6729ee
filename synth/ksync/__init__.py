"""k-synchronous synthesis after SCCL (Cai et al., PPoPP 2021): exact schedules for (chunks, steps,
rounds).
"""
