"""What transfers get that run at once, beside what one of them gets alone: patterns of flows.

A flow is data that one rank sends to another; a pattern is the flows of one measurement.
"""
