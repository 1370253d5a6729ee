"""Ranks that carry bytes for groups they are not in: how they learn of calls, and serve them."""
