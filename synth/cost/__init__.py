"""How long a schedule takes: affine cost, link loads, host costs, and the simulation of its
messages.
"""
