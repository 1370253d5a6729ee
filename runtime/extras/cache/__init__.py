"""Cache plans, and the results of races between schedules, in a folder for later starts."""
