"""Handles of ranks: what others need to find a rank for a new membership, as opaque texts.

Each process hosts a store of its own, so that a group which is made anew depends on no rank of the
old one: the first rank of the new membership hosts the store where all of it meet.
"""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import cache

from torch._C._distributed_c10d import Store, TCPStore

from ....topo.errors import ExecutionError, InputError
from ...ranks.addresses import Address, find_ended, open_listener

_PREFIX = "topoplan-rank-1"
_NONCE_BYTES = 8  # as in addresses.py: more than can be guessed
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Handle:
    """Where a rank's process hosts its store, and listens; `nonce` tells the ranks apart."""

    host: str
    store_port: int
    port: int
    nonce: str

    def __str__(self) -> str:
        return f"{_PREFIX}/{self.host}/{self.store_port}/{self.port}/{self.nonce}"

    @property
    def address(self) -> Address | None:
        """The address at which the process listens as long as it lives, None if it has none."""
        return Address(self.host, self.port, self.nonce) if self.port else None


def make_nonce() -> str:
    """Return the nonce of a group's handle."""
    return secrets.token_hex(_NONCE_BYTES)


def make_handle(nonce: str) -> Handle:
    """Return the handle of this process's group with this nonce, whose store runs from now on."""
    store, listener = _host_store(), open_listener()
    store.set(f"handle/{nonce}", "")
    port = 0 if listener is None else listener.getsockname()[1]
    return Handle(_find_host(), store.port, port, nonce)


@cache
def _host_store() -> TCPStore:
    """Return this process's own store, which lives as long as the process."""
    return TCPStore(_find_host(), 0, is_master=True, wait_for_workers=False)


def _find_host() -> str:
    listener = open_listener()
    return _LOOPBACK if listener is None else str(listener.getsockname()[0])


def parse_handles(texts: Iterable[object], own_nonce: str) -> tuple[list[Handle], int]:
    """Return the handles, and the place of this rank's own among them.

    Raise InputError if one is no handle, is listed twice, or this rank's own is missing.
    """
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise InputError(f"handles={texts!r:.40}: expected a list of handles, one a rank")
    handles: list[Handle] = []
    for number, text in enumerate(texts):
        handle = _parse(text, number)
        if handle in handles:
            raise InputError(
                f"handles[{number}]: the same handle as handles[{handles.index(handle)}]; list "
                "each rank once"
            )
        handles.append(handle)
    nonces = [handle.nonce for handle in handles]
    if own_nonce not in nonces:
        raise InputError(
            f"handles: this rank's own is not among the {len(handles)}; a rank that is to leave "
            "calls destroy_process_group instead"
        )
    return handles, nonces.index(own_nonce)


def _parse(text: object, number: int) -> Handle:
    if isinstance(text, str):
        prefix, *fields = text.split("/")
        if (
            prefix == _PREFIX
            and len(fields) == 4
            and fields[1].isdecimal()
            and fields[2].isdecimal()
        ):
            host, store_port, port, nonce = fields
            return Handle(host, int(store_port), int(port), nonce)
    raise InputError(
        f"handles[{number}]={text!r:.40}: expected a text that reconfigure_handle() returned on a "
        "rank, with this version of topoplan"
    )


def open_store(handle: Handle, *, is_own: bool, timeout_s: float) -> Store:
    """Return a connection to the store of a handle's process.

    Raise ExecutionError if that process has ended, and RuntimeError if it cannot be reached.
    """
    if is_own:
        own: Store = _host_store().clone()  # type: ignore[attr-defined]
        return own
    check_alive([handle], [0])
    store = TCPStore(
        handle.host,
        handle.store_port,
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout_s),
    )
    if not store.check([f"handle/{handle.nonce}"]):
        raise _explain_end([0])
    return store


def check_alive(handles: list[Handle], numbers: Iterable[int]) -> None:
    """Raise ExecutionError if the processes of some of the handles have ended."""
    ended = find_ended({number: handles[number].address for number in numbers})
    if ended:
        raise _explain_end(ended)


def _explain_end(ended: list[int]) -> ExecutionError:
    listed = ", ".join(f"handles[{number}]" for number in ended)
    verdict = "process has" if len(ended) == 1 else "processes have"
    return ExecutionError(f"{listed}: the {verdict} ended; reconfigure without these handles")
