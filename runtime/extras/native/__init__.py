"""Load the C++ library that runs programs in shared memory and over MPI."""
