"""Write what other executors read: NCCL's graph files, RCCL's rings and trees, the tables of
tuners.
"""
