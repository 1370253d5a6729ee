"""Name devices, and shorten lists of names."""

from collections.abc import Container, Iterable


def pick_unused_name(wanted: str, *taken: Container[str]) -> str:
    """Return `wanted`, or the first of `wanted#2`, `wanted#3` and so on that is not taken."""
    name, copy = wanted, 2
    while any(name in names for names in taken):
        name, copy = f"{wanted}#{copy}", copy + 1
    return name


def join_first(names: Iterable[str], most: int, separator: str = ", ") -> str:
    """Join the first `most` names and count the rest: "gpu0, gpu1 and 6 more"."""
    every = list(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return separator.join(every[:most]) + more


def name_opposite(ident: str) -> str:
    """Return the device by which data comes back that leaves by device `ident`.

    It is the device itself, except that a host whose ports do not forward to each other sends by
    "HOST/out" and receives by "HOST/in".
    """
    host, slash, end = ident.rpartition("/")
    return host + slash + {"out": "in", "in": "out"}.get(end, end) if slash else ident
