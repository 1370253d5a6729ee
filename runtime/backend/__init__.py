"""The c10d backend "topo": its process group, and the search for plans."""

# The name of the backend for init_process_group.
NAME = "topo"
