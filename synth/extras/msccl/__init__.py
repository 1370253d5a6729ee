"""Read MSCCL's algorithm files (XML), replay them, and turn them into schedules."""
