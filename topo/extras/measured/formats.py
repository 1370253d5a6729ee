"""Matrices of measured rates among the texts that describe no machine."""

from ...formats.format import Aside
from . import pair_rates

PAIR_RATES = Aside(pair_rates.describe, '"nvbandwidth"')
