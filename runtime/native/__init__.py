"""The optional library in C++: sums, and players of programs in shared memory and over MPI."""
