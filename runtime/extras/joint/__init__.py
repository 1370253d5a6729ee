"""Run joint plans: calls of several groups at once, raced against stock collectives as a whole."""
