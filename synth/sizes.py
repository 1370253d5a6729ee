"""Sizes in bytes as people write them: 4096, 64K, 1MiB, 2G, 10MB.

K, M, G and T alone are binary multiples, as in nccl-tests, and so are KiB, MiB, GiB and TiB. kB,
MB, GB and TB are powers of 1000, as in the SI. Capitals make no difference.
"""

import re

from ..topo.errors import InputError

_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_DECIMAL_FACTORS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_SIZE = re.compile(r"(\d{1,18})([KMGT]?)(iB|B)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return the number of bytes that a text denotes; raise InputError if it is not a size.

    1M and 1MiB are 1,048,576 bytes, 1MB is 1,000,000.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InputError(f"{text!r} is not a size; expected bytes such as 4096, 64K, 1MiB or 2G")
    is_decimal = (match[3] or "").upper() == "B"
    return int(match[1]) * (_DECIMAL_FACTORS if is_decimal else _FACTORS)[match[2].upper()]


def show_size(size_bytes: int) -> str:
    """Return a size in the largest binary unit that is not above it, to four significant digits."""
    for unit in "TGMK":
        if size_bytes >= _FACTORS[unit]:
            return f"{size_bytes / _FACTORS[unit]:.4g} {unit}iB"
    return f"{size_bytes} B"


def count_bytes(size: int | str) -> int:
    """Return a size as a number of bytes.

    Raise InputError if it is negative, or a text that `parse_size` cannot read.
    """
    if isinstance(size, str):
        return parse_size(size)
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise InputError(
            f"size is {size!r}; expected bytes as a whole number, or a text such as '64M'"
        )
    return size
