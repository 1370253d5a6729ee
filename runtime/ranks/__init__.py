"""The processes that take part: starting them, their hosts and groups, the store, stock
collectives, faults, deadlines.
"""
