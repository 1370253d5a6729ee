"""Plans for collectives of some of a machine's GPUs, which the others may help.

Joint plans are for several groups that run at the same time (`joint.py`).
"""
