"""The colours of all pictures."""

from __future__ import annotations

import re

import pytest

from topoplan.synth.pictures.drawing import STYLE, show_us


def _find_lightness(colour: str) -> float:
    """Return CIE's L* of a colour, from 0 (black) to 100 (white)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    shares = (0.2126, 0.7152, 0.0722)
    luminance: float = sum(share * x for share, x in zip(shares, linear, strict=True))
    return float(116 * luminance ** (1 / 3) - 16)


def test_a_plan_and_stock_can_be_distinguished_without_colours() -> None:
    """On light pages and on dark ones."""
    for scheme in STYLE.split("@media"):
        plan, stock, paper = (
            _find_lightness(re.findall(rf"--{name}:(#\w+)", scheme)[0])
            for name in ("plan", "stock", "paper")
        )
        assert abs(plan - stock) >= 18
        assert min(abs(plan - paper), abs(stock - paper)) >= 40


@pytest.mark.parametrize(
    ("us", "shown"),
    [(12.34, "12.3 us"), (999.7, "1 ms"), (4500, "4.5 ms"), (999_700, "1 s"), (1.2e6, "1.2 s")],
)
def test_a_time_has_the_unit_that_it_is_rounded_to(us: float, shown: str) -> None:
    assert show_us(us) == shown
