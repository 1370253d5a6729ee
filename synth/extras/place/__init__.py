"""Place a job's ranks on GPUs so that its communication takes the least time, with a bound."""
