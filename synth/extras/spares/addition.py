"""The option --spare of topo-synth: add spare plans, for lost links, to a plan.

An Addition (synth/addition.py) is how an extra adds to a finished plan, and reports on it.
"""

from ...addition import Addition
from .planning import add_spares
from .report import report_spares

SPARE = Addition(add_spares, report_spares)
