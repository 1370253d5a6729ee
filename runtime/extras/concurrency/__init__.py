"""Transfers that wait for their turn, as plans with limits promise."""
