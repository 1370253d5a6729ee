"""Words of tables of nccl-tests: numbers, names of columns, PCI addresses and versions."""

import re

NUMBER = re.compile(r"(?:[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?|[-+]?(?:nan|inf)|N/A)\*?", re.IGNORECASE)
# A number in which people group digits: 1_048_576 or 1,048,576.
_GROUPED = re.compile(r"\d{1,3}(?:[_,]\d{3})+")


def split_numbers(line: str) -> list[str]:
    """Return the numbers of a line, without what groups their digits."""
    words = [re.sub("[_,]", "", w) if _GROUPED.fullmatch(w) else w for w in line.split()]
    return [word for word in words if NUMBER.fullmatch(word)]


def is_mostly_numbers(line: str, least: int) -> bool:
    """Return whether a line has at least `least` numbers, and more numbers than other words."""
    count = len(split_numbers(line))
    return count >= least and 2 * count > len(line.replace("|", " ").split())


def read_columns(line: str) -> list[str]:
    """Return the names of a header's columns, from size on."""
    words = line.replace("#wrong", "error").replace("#", " ").split()
    first = next((i for i, word in enumerate(words) if word in ("size", "bytes")), 0)
    current = {"bytes": "size", "N": "count", "op": "redop"}
    return [current.get(word, word) for word in words[first:]]


def read_bus(text: str) -> str | None:
    """Return a table's PCI address; None if it is unknown or malformed.

    Forms are 0x1b (a bus alone), 0000:1b:00 and 0000:1b:00.0; 0x00 means an unknown address.
    """
    text = text.lower()
    if re.fullmatch(r"0x[0-9a-f]{1,2}", text):
        return f"{int(text, 16):02x}" if int(text, 16) else None
    form = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-9a-f])?"
    return text if re.fullmatch(form, text) else None


def read_version(code: int) -> str:
    """Return a version from NCCL_VERSION_CODE: 22304 is 2.23.4, 2408 was 2.4.8."""
    if code >= 10_000:
        return f"{code // 10_000}.{code // 100 % 100}.{code % 100}"
    return f"{code // 1000}.{code // 100 % 10}.{code % 100}"
