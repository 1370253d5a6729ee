"""Exact numbers in and out of files: fractions from JSON numbers, strings and back."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction
from math import gcd, lcm
from typing import Any

_TOO_LARGE = 10**31


def parse_fraction(value: object) -> Fraction:
    """Return an int, Decimal, Fraction, float (by its shortest decimal form) or string such as "64/3" as a fraction.

    Raises ValueError where `value` is none of these, and for numbers of more than 31 digits.
    """
    if isinstance(value, bool) or value is None:
        raise ValueError(f"not a number: {value!r}")
    if isinstance(value, int) and abs(value) >= _TOO_LARGE:
        raise ValueError("not a usable number: it has more than 31 digits")
    if isinstance(value, (int, Fraction)):
        return Fraction(value)
    if isinstance(value, float):
        return Fraction(repr(value))
    if isinstance(value, Decimal):
        if not value.is_finite() or abs(value.adjusted()) > 30:
            raise ValueError(f"not a usable number: {value}")
        return Fraction(value)
    if isinstance(value, str) and len(value) <= 100 and "e" not in value.lower():
        try:
            number = Fraction(value)
        except ZeroDivisionError:
            raise ValueError(f"not a number: {value!r}") from None
        if abs(number) < _TOO_LARGE:
            return number
    raise ValueError(f"not a number: {value!r}")


def fraction_to_json(value: Fraction) -> int | float | str:
    """Return the shortest JSON value that `parse_fraction` reads back as exactly `value`: a decimal number where possible."""
    if value.denominator == 1:
        return value.numerator
    as_float = float(value)
    if "e" not in repr(as_float) and Fraction(repr(as_float)) == value:
        return as_float
    return f"{value.numerator}/{value.denominator}"


def load_json(text: str, most_values: int | None = None) -> Any:
    """Read JSON text like json.loads, with decimals as Decimal, which is exact.

    Raises ValueError for NaN, Infinity and texts of more than `most_values` values. These are counted by commas and
    brackets, before memory is taken for them.
    """
    if most_values is not None and sum(map(text.count, ",[{")) > most_values:
        raise ValueError(f"it holds more than {most_values} values")

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is not a number that a file may hold")

    return json.loads(text, parse_float=Decimal, parse_constant=refuse)


def fraction_gcd(values: list[Fraction]) -> Fraction:
    """Return the greatest common divisor of `values` (positive, at least one): all are whole multiples of it."""
    denominator = lcm(*(v.denominator for v in values))
    return Fraction(gcd(*(int(v * denominator) for v in values)), denominator)
