"""Schedules of one host lowered to one-sided programs: put, signal, wait, add and copy on slots."""
