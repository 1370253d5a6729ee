"""The library in C++, which plays programs in shared memory and over MPI."""
