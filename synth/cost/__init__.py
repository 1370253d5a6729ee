"""The time a schedule takes: affine cost, link loads, host costs, and simulated messages."""
