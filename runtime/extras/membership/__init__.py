"""Other memberships of a group of the backend "topo": ranks died, leave, or join."""
