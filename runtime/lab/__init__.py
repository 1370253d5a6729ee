"""The lab report: one training job on real data, serially and on several ranks, through every system side by side.

`settings.py` what is trained, `systems.py` through what, `dataset.py` (with `tables.py`) on what, `networks.py` over what.
`runs.py` starts ranks and gathers rows (`rows.py`); in a rank (`rank.py`, `crew.py`) each system is a `contender.py`,
which trains (`training.py`) and counts bytes (`traffic.py`). `environment.py` says on which machine, `findings.py` what
follows from the figures, and `report.py` writes it all down.
"""
