"""A model of stock NCCL: the rings and chains that it finds by itself, and what it picks."""
