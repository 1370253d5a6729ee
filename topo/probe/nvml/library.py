"""NVML through pynvml, one query at a time, so that an error loses only the fact requested.

A fact is a value about a subject (`gpu/0`) with its source, or the reason why it is missing.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ...facts import Fact, Value, keys
from ...facts.keys import P2P, Key, gpu_subject, normalize_bus_id

FIELD_VALUES = "nvmlDeviceGetFieldValues"
# Members of nvmlValue_t, by nvmlValueType_t.
_VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


@dataclass(frozen=True)
class Gpu:
    """A GPU with NVML's `handle` of it, which queries take; `index` is its number in NVML."""

    index: int
    handle: Any

    @property
    def subject(self) -> str:
        """The subject of its facts, `gpu/N`."""
        return gpu_subject(self.index)


class Nvml:
    """The open library, and the GPUs that queries found to be lost or denied.

    `module` is pynvml; `lost` maps a GPU's subject to the fact `lost` if a query returned the error
    GpuIsLost or ResetRequired. `denied` has the subjects of which a query returned NoPermission.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self.lost: dict[str, Fact] = {}
        self.denied: set[str] = set()
        self.errors: tuple[type[Exception], ...] = list_errors(module)

    def ask(
        self,
        subject: str,
        key: Key[Any],
        function: str,
        *arguments: Any,
        read: Callable[[Any], Value] = int,
        let_through: tuple[type[Exception], ...] = (),
    ) -> Fact:
        """Call pynvml's `function`, convert its answer by `read`, and return it as the fact `key`.

        If the call fails, the fact is missing, with the reason; a lost GPU is recorded in `lost`, a
        query without permission in `denied`. Errors in `let_through` are raised instead.
        """
        try:
            return Fact(subject, key, read(getattr(self.module, function)(*arguments)), function)
        except self.errors as error:
            if isinstance(error, let_through):
                raise
            self._note_failure(subject, function, error)
            return Fact(subject, key, None, function, describe_error(error))

    def list_error_classes(self, *names: str) -> tuple[type[Exception], ...]:
        """Return the classes `NVMLError_...` with these names, as far as this pynvml has them."""
        return tuple(
            error
            for name in names
            if isinstance(error := getattr(self.module, f"NVMLError_{name}", None), type)
        )

    def read_fields(self, gpu: Gpu, ids: Sequence[tuple[int, int]]) -> list[int | str]:
        """Return a GPU's values of all (field id, scope id) in `ids`, in order, by a single query.

        For NVLinks the scope is the link's number. Each value is an integer, or a text with the
        reason why there is none.
        """
        try:
            values = getattr(self.module, FIELD_VALUES)(gpu.handle, list(ids))
        except self.errors as error:
            self._note_failure(gpu.subject, FIELD_VALUES, error)
            return [describe_error(error)] * len(ids)
        return [self._read_field(value) for value in values]

    def _read_field(self, value: Any) -> int | str:
        if value.nvmlReturn:
            return describe_error(self.module.NVMLError(value.nvmlReturn))
        if value.valueType >= len(_VALUE_MEMBERS):
            return f"a value of type {value.valueType}, which is not known here"
        return int(getattr(value.value, _VALUE_MEMBERS[value.valueType]))

    def _note_failure(self, subject: str, function: str, error: Exception) -> None:
        if isinstance(error, self.list_error_classes("GpuIsLost", "ResetRequired")):
            # A link's GPU is lost with it. Of a pair either may be: see `links.read_p2p`.
            gpu = subject if P2P in subject else "/".join(subject.split("/")[:2])
            self.lost.setdefault(gpu, Fact(gpu, keys.GPU_LOST, describe_error(error), function))
        elif isinstance(error, self.list_error_classes("NoPermission")):
            self.denied.add(subject)


@contextmanager
def open_nvml(module: Any) -> Iterator[Nvml]:
    """Initialize pynvml's `module` (nvmlInit), yield the library, and shut it down at the end.

    Raise the errors of nvmlInit.
    """
    module.nvmlInit()
    library = Nvml(module)
    try:
        yield library
    finally:
        with suppress(*library.errors):  # all answers have been read by now
            module.nvmlShutdown()


def list_errors(module: Any) -> tuple[type[Exception], ...]:
    """Return the classes of all errors that a query of pynvml's `module` may raise.

    They are the library's own, and those for a missing function and for a bad argument.
    """
    return (module.NVMLError, AttributeError, ctypes.ArgumentError, OSError, ValueError)


def describe_error(error: Exception) -> str:
    """Return an error's message, or its type if it has none."""
    return str(error) or type(error).__name__


def decode_text(value: Any) -> str:
    """Return a text from NVML as str; older versions of pynvml return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def read_pci_address(info: Any) -> str:
    """Return the PCI address in NVML's structure nvmlPciInfo_t, as Linux writes it."""
    return normalize_bus_id(decode_text(info.busId))
