"""The lab report: train one model on real data, serially and through every system.

`settings.py` says what is trained, `systems.py` through which systems, `networks.py` over which
networks. `runs.py` starts ranks, gives them their job in a folder (`run_folder.py`) and collects
the results; `training/` is what a rank does. `environment.py` describes the machine, `results.py`
summarizes figures and findings, and `page.py` writes them.
"""
