"""Players of compiled programs: in order over gloo and NCCL, as messages come over MPI; and MPI's
own collectives.
"""
