"""What plays compiled programs: in their own order over gloo and NCCL, as messages come over MPI."""
