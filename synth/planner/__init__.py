"""Planning: the entry points, the strategies by name, and the choice among their schedules."""
