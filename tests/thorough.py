"""How many examples the property tests draw: a few each time, ten times as many under
TOPOPLAN_TEST_EXAMPLES=10.
"""

from __future__ import annotations

import os

VARIABLE = "TOPOPLAN_TEST_EXAMPLES"


def count_examples(usual: int) -> int:
    """Return how many examples to draw where `usual` are drawn in `make test`."""
    return max(1, round(usual * float(os.environ.get(VARIABLE, "1"))))
