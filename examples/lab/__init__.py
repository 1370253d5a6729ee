"""The lab report: train one model on real data, serially and through every system.

`python -m examples.lab` from the root of the sources runs it: `command.py` has its options.

`settings.py` defines the model and training, `systems.py` the systems, `networks.py` the networks.
`runs.py` starts ranks, gives them their job in a folder (`run_folder.py`) and collects the results;
`training/` is the ranks' part. `environment.py` describes the machine, `results.py` summarizes
figures and findings, and `page.py` writes them.
"""
