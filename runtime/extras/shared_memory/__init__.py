"""Run plans on CPUs through memory that ranks share: all ranks, or those of each host."""
