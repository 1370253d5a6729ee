"""JSON of any length through a store: TCPStore breaks off its connections at values above 8 MiB."""

from __future__ import annotations

import json
import zlib
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store

PART_BYTES = 4 << 20


def put(store: Store, key: str, value: Any) -> None:
    """Put a JSON value into the store, for the other ranks."""
    data = zlib.compress(json.dumps(value).encode(), 1)
    parts = [data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES)]
    for number, part in enumerate(parts):
        store.set(f"{key}/{number}", part)  # type: ignore[arg-type]
    store.set(key, str(len(parts)))


def take(store: Store, key: str, timeout: timedelta) -> Any:
    """Return a value that a rank puts, waiting for it. Raises RuntimeError where that takes longer than `timeout`."""
    store.wait([key], timeout)
    data = b"".join(store.get(f"{key}/{number}") for number in range(int(store.get(key))))
    return json.loads(zlib.decompress(data))
