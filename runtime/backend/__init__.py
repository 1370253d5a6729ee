"""The c10d backend "topo": its process group, works, and the search for plans."""
