"""MPI as a third transport: the library at hand, the ranks that mpirun started, communicators, and
MPI's own collectives.
"""
