"""Spare plans for the loss of a link or a NIC, made in advance and saved in the plan's file."""
