"""Recognize matrices of measured rates among the texts that do not describe a machine."""

from ...formats.format import Aside
from . import pair_rates

PAIR_RATES = Aside(pair_rates.describe, '"nvbandwidth"')
