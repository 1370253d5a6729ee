"""Count which schedules a run's calls used, and estimate the time saved."""
