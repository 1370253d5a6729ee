"""MPI as links: the library, ranks started by mpirun, communicators, players, collectives."""
