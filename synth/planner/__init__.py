"""Planning: entry points, strategies by name, and the choice among their schedules."""
