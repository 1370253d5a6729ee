"""The lab report: one training job on real data, serially and on several ranks, through every
system side by side.

`settings.py` says what is trained, `systems.py` through which systems, `networks.py` over which
networks. `runs.py` starts ranks, gives them their job in a folder (`run_folder.py`) and collects
the results; `training/` is what a rank does. `environment.py` describes the machine, and `report/`
writes down results and findings.
"""
