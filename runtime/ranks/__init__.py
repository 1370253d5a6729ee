"""The participating processes: starting them, their hosts and groups, the store, stock
collectives, faults.
"""
