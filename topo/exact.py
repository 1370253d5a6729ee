"""Read and write exact numbers: fractions as JSON numbers or strings."""

import json
from collections import Counter
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from math import gcd, lcm
from typing import Any

# Digits: longer numbers make exact arithmetic slow, and no rate or size needs 31.
_TOO_LARGE = 10**31
# Nesting depth of JSON values: plans need 5 levels, facts of machines fewer than 10.
MAX_DEPTH = 64

_TOO_DEEP = f"it is nested deeper than {MAX_DEPTH} levels"
_CONTAINERS = frozenset({dict, list})


def parse_fraction(value: object) -> Fraction:
    """Convert a number, or a string such as "64/3", to a fraction.

    A float counts as its shortest decimal form. Raise ValueError for other values, and for numbers
    of more than 31 digits.
    """
    match value:
        case bool():  # an int to Python
            pass
        case int() if abs(value) >= _TOO_LARGE:
            raise ValueError("not a usable number: it has more than 31 digits")
        case int() | Fraction():
            return Fraction(value)
        case float():
            return Fraction(repr(value))
        case Decimal() if not value.is_finite() or abs(value.adjusted()) > 30:
            raise ValueError(f"not a usable number: {value}")
        case Decimal():
            return Fraction(value)
        case str() if len(value) <= 100 and "e" not in value.lower():
            with suppress(ZeroDivisionError):
                number = Fraction(value)
                if abs(number) < _TOO_LARGE:
                    return number
    raise ValueError(f"not a number: {value!r}")


def parse_positive(value: object) -> Fraction | None:
    """Return a number above 0 as `parse_fraction` does, None for anything else."""
    try:
        number = parse_fraction(value)
    except ValueError:
        return None
    return number if number > 0 else None


def fraction_to_json(value: Fraction) -> int | float | str:
    """Return the shortest JSON value that `parse_fraction` reads back exactly."""
    if value.denominator == 1:
        return value.numerator
    as_float = float(value)
    if "e" not in repr(as_float) and Fraction(repr(as_float)) == value:
        return as_float
    return f"{value.numerator}/{value.denominator}"


def load_json(text: str | bytes, max_values: int | None = None, *, exact: bool = True) -> Any:
    """Parse JSON like json.loads, with decimals as Decimal, or as float unless `exact`.

    Raise ValueError if an object repeats a key, values are nested deeper than `MAX_DEPTH`, there
    are more than `max_values` values or, if `exact`, for NaN and Infinity. Values are counted by
    commas and brackets, before any memory is allocated for them.
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text))
    if max_values is not None and sum(map(text.count, ",[{")) > max_values:
        raise ValueError(f"it holds more than {max_values} values")

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is not a number that a file may hold")

    try:
        data = json.loads(
            text,
            parse_float=Decimal if exact else None,
            parse_constant=refuse if exact else None,
            object_pairs_hook=_join_once,
        )
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _check_depth(data)
    return data


def _join_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object's fields; raise ValueError if a key is repeated."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        name = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        first, value = pairs[0]
        begins = first if type(value) in _CONTAINERS else f"{first}: {value}"
        raise ValueError(
            f"{name!r:.60} is there twice in the object that begins with {begins!r:.60}; give it "
            "once"
        )
    return fields


def _check_depth(data: Any) -> None:
    """Raise ValueError beyond MAX_DEPTH: later code may recurse at every level."""
    level = [data]
    for _ in range(MAX_DEPTH):
        level = [
            value
            for outer in level
            if type(outer) in _CONTAINERS
            for value in (outer.values() if type(outer) is dict else outer)
            if type(value) in _CONTAINERS
        ]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def fraction_gcd(values: list[Fraction]) -> Fraction:
    """Return the greatest common divisor of positive fractions.

    All `values` are integer multiples of it.
    """
    denominator = lcm(*(v.denominator for v in values))
    return Fraction(gcd(*(int(v * denominator) for v in values)), denominator)
