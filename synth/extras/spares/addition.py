"""The addition of --spare."""

from ...addition import Addition
from .planning import add_spares
from .report import report_spares

SPARE = Addition(add_spares, report_spares)
