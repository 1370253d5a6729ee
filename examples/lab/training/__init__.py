"""Training by one rank: the model through each system, with timed epochs and counted bytes."""
