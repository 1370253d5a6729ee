"""Write files that tune NCCL and RCCL: NCCL's graph files, RCCL's variables, tables for tuners."""
