"""The player of compiled programs over gloo and NCCL, and the local operations of all players."""
