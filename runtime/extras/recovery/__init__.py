"""Calls that go on after a lost link, by what is left."""
