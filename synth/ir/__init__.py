"""The intermediate representation: collectives, transfers, schedules, and what follows from a
schedule alone.
"""
