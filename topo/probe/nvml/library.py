"""NVML by way of pynvml, asked one question at a time: an error costs the one fact that was asked for."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ...facts import Fact, Value

FIELD_VALUES = "nvmlDeviceGetFieldValues"
_VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of nvmlValue_t, by nvmlValueType_t."""


@dataclass(frozen=True)
class Gpu:
    """A GPU that NVML gave a handle for, and the subject of its facts."""

    index: int
    handle: Any

    @property
    def subject(self) -> str:
        """`gpu/N`."""
        return f"gpu/{self.index}"


class Nvml:
    """The library while it is open, and the GPUs found lost on the way.

    `module` is pynvml; `lost` gives the fact `lost` of each GPU (`gpu/N`) that once answered so.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self.lost: dict[str, Fact] = {}
        self.errors: tuple[type[Exception], ...] = errors_of(module)

    def ask(
        self,
        subject: str,
        key: str,
        function: str,
        *arguments: Any,
        read: Callable[[Any], Value] = int,
        let_through: tuple[type[Exception], ...] = (),
    ) -> Fact:
        """The fact that `function` answers, in the form that `read` gives it; missing with the reason where it fails.

        Errors among `let_through` go to the caller.
        """
        try:
            return Fact(subject, key, read(getattr(self.module, function)(*arguments)), function)
        except self.errors as error:
            if isinstance(error, let_through):
                raise
            self._note_lost(subject, function, error)
            return Fact(subject, key, None, function, told(error))

    def error_classes(self, *names: str) -> tuple[type[Exception], ...]:
        """The classes `NVMLError_...` that this version of pynvml has, by the ends of their names."""
        found = (getattr(self.module, f"NVMLError_{name}", None) for name in names)
        return tuple(error for error in found if isinstance(error, type))

    def fields(self, gpu: Gpu, ids: Sequence[tuple[int, int]]) -> list[int | str]:
        """Field values by (field, scope), asked for at once: a whole number each, or the reason why there is none."""
        try:
            values = getattr(self.module, FIELD_VALUES)(gpu.handle, list(ids))
        except self.errors as error:
            self._note_lost(gpu.subject, FIELD_VALUES, error)
            return [told(error)] * len(ids)
        return [self._field(value) for value in values]

    def _field(self, value: Any) -> int | str:
        if value.nvmlReturn:
            return told(self.module.NVMLError(value.nvmlReturn))
        if value.valueType >= len(_VALUE_MEMBERS):
            return f"a value of type {value.valueType}, which is not known here"
        return int(getattr(value.value, _VALUE_MEMBERS[value.valueType]))

    def _note_lost(self, subject: str, function: str, error: Exception) -> None:
        if isinstance(error, self.error_classes("GpuIsLost")):
            gpu = "/".join(subject.split("/")[:2])
            self.lost.setdefault(gpu, Fact(gpu, "lost", told(error), function))


@contextmanager
def opened(module: Any) -> Iterator[Nvml]:
    """The library from nvmlInit to nvmlShutdown; what nvmlInit raises goes to the caller."""
    module.nvmlInit()
    library = Nvml(module)
    try:
        yield library
    finally:
        with suppress(*library.errors):  # all that was asked for is known by now
            module.nvmlShutdown()


def errors_of(module: Any) -> tuple[type[Exception], ...]:
    """What one question may end with: the library's errors, a function that this version lacks, a refused argument."""
    return (module.NVMLError, AttributeError, ctypes.ArgumentError, OSError, ValueError)


def told(error: Exception) -> str:
    """An error in its own words."""
    return str(error) or type(error).__name__


def text(value: Any) -> str:
    """A text of NVML's; older versions of pynvml give bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def pci_address(info: Any) -> str:
    """The address in a nvmlPciInfo_t, as Linux writes it."""
    return normal_bus_id(text(info.busId))


def normal_bus_id(written: str) -> str:
    """A bus id as Linux writes it: `00000000:3B:00.0` becomes `0000:3b:00.0`."""
    domain, colon, rest = written.strip().lower().partition(":")
    return f"{domain.lstrip('0').rjust(4, '0')}:{rest}" if colon and ":" in rest else written.strip().lower()
