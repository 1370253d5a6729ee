"""Handles of ranks: the texts by which ranks find each other to re-form a group.

Each process hosts a store, so that a re-formed group depends on no rank of the old one: all meet in
the store of the new group's first rank. Errors call the i-th handle of a list `handles[i]`.
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
    """The address by which others find a rank.

    Its process hosts a store at `host` and TCP port `store_port`, and listens at `port` as long as
    it lives (0: it does not); `nonce` is a random text that identifies the rank.
    """

    host: str
    store_port: int
    port: int
    nonce: str

    def __str__(self) -> str:
        return f"{_PREFIX}/{self.host}/{self.store_port}/{self.port}/{self.nonce}"

    @property
    def address(self) -> Address | None:
        """The address at which the process listens as long as it lives; None if there is none."""
        return Address(self.host, self.port, self.nonce) if self.port else None


def make_nonce() -> str:
    """Return a new random text that identifies a rank in its handle."""
    return secrets.token_hex(_NONCE_BYTES)


def make_handle(nonce: str) -> Handle:
    """Start this process's store if it does not run yet; return the handle with this nonce.

    The nonce is entered in the store, so that `open_store` can tell the process from a later one.
    """
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
    """Parse handles; return them and the index of this rank's own, which has `own_nonce`.

    Raise InputError if a text is no handle, one is listed twice, or this rank's own is missing.
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
    """Connect to the store of the first handle's process, which is this one if `is_own`.

    Raise ExecutionError, which names handles[0], if that process has ended, and RuntimeError if it
    cannot be reached in `timeout_s` seconds.
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
    """Raise ExecutionError if the process of a handle has ended: of handles[n], for n in `numbers`.

    Tries to connect to each. One that cannot be reached is not known to have ended, nor is one that
    does not listen (`port` 0).
    """
    ended = find_ended({number: handles[number].address for number in numbers})
    if ended:
        raise _explain_end(ended)


def _explain_end(ended: list[int]) -> ExecutionError:
    listed = ", ".join(f"handles[{number}]" for number in ended)
    verdict = "process has" if len(ended) == 1 else "processes have"
    return ExecutionError(f"{listed}: the {verdict} ended; reconfigure without these handles")
