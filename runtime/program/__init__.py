"""A schedule lowered to the instructions of one rank. No torch."""
