"""Players of compiled programs: in order over gloo and NCCL, as messages come over MPI.

MPI's own collectives have a player, too.
"""
