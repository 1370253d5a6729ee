"""Use MPI for sending: load it, join ranks started by mpirun, run programs and collectives."""
