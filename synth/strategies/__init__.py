"""The built-in strategies, a module each; `built_in.py` lists them.

Nothing is imported here: ranks build flat schedules by `direct.py`, without the others' solvers.
"""
