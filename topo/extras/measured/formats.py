"""Recognize matrices of measured rates among the texts that do not describe a machine.

extras.py at the root lists PAIR_RATES, so that a user who gives such a text as a machine is told
what it is.
"""

from ...formats.format import Aside
from . import pair_rates

PAIR_RATES = Aside(pair_rates.describe, '"nvbandwidth"')
