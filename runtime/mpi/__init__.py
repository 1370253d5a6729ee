"""MPI as a third transport: the library, the ranks that mpirun started, communicators,
collectives.
"""
