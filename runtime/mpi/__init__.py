"""MPI as a third transport: library, ranks started by mpirun, communicators, collectives."""
