"""Where ranks go: which GPU each rank gets, so that a job's communication takes the least time,
with a bound on any order.
"""
