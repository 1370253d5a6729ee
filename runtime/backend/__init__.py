"""The c10d backend "topo": its process group, and the search for plans."""

# What init_process_group calls the backend.
NAME = "topo"
