"""The lab report: one training job on real data, serially and on several ranks, through every system side by side.

`settings.py` what is trained, `systems.py` through what, `dataset.py` (with `tables.py`) on what, `networks.py` over what.
`runs.py` starts ranks (`rank.py` is what each does, `training.py` the loop itself, `traffic.py` the count of bytes) and
gathers rows (`rows.py`); `environment.py` says on which machine, `findings.py` what follows from the figures, and `report.py`
writes it all down.
"""
