"""The intermediate representation: collectives, transfers, schedules, and their properties."""
