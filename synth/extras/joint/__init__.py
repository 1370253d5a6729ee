"""Joint plans: for groups that run at the same time and share the links.

`plan.py` has the plan and its file, `synthesize.py` makes it.
"""
