"""Files for other executors: NCCL's graphs, RCCL's rings and trees, tables of tuners."""
