"""Joint plans: of groups that run at the same time and share the links.

`plan.py` is the file of one, `synthesize.py` makes it.
"""
