"""Has the CPU pass for GPUs, so that tests that were written for them run where there are none."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

_SILENT = (
    "set_device",
    "synchronize",
    "manual_seed",
    "manual_seed_all",
    "empty_cache",
    "_sleep",
    "init",
    "_lazy_init",
)


def pretend(devices: int) -> None:
    """Let torch say from now on that there are as many GPUs, which are all the CPU. For a process
    that does nothing else.
    """
    distributed: Any = torch.distributed
    distributed.is_nccl_available = lambda: (
        False
    )  # a CUDA build of torch has NCCL, which refuses to run without a GPU
    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: devices
    cuda.current_device = lambda: 0
    for name in _SILENT:
        setattr(
            cuda, name, lambda *_, **__: None
        )  # each its own: torch.compile tells functions apart
    cuda.device = cuda.stream = _enter_nothing
    cuda.Stream = cuda.Event = cuda.current_stream = cuda.default_stream = _Stream
    tensor: Any = torch.Tensor
    tensor.cuda = lambda self, *_, **__: self
    module: Any = torch.nn.Module
    module.cuda, module.to = lambda self, *_: self, _to_cpu(module.to)
    wrapper: Any = DistributedDataParallel
    wrapper.__init__ = _without_devices(wrapper.__init__)
    _OnCpu().__enter__()


class _OnCpu(TorchFunctionMode):
    """Makes and moves tensors on the CPU, whatever GPU is named."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = _find_place(kwargs["device"])
        if func is torch.Tensor.to:
            args = (args[0], *map(_find_place, args[1:]))
        return func(*args, **kwargs)


class _Stream:
    """A stream or an event: everything is done when it is asked for."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    def __getattr__(self, _: str) -> Any:
        return _do_nothing


def _find_place(device: Any) -> Any:
    """Return the CPU for what names a GPU; anything else as it is."""
    if isinstance(device, int) and not isinstance(device, bool):
        return torch.device("cpu")
    if isinstance(device, (str, torch.device)) and str(device).startswith("cuda"):
        return torch.device("cpu")
    return device


def _do_nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def _enter_nothing(*_: Any, **__: Any) -> AbstractContextManager[None]:
    return nullcontext()


def _to_cpu(move: Any) -> Any:
    """Return a Module.to that keeps to the CPU."""

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        return move(
            self,
            *map(_find_place, args),
            **{name: _find_place(value) for name, value in kwargs.items()},
        )

    return to


def _without_devices(init: Any) -> Any:
    """Return a constructor that takes the devices of a model on GPUs, and makes one of a model on
    the CPU.
    """

    def make(
        self: Any, *args: Any, device_ids: Any = None, output_device: Any = None, **kwargs: Any
    ) -> None:
        init(self, args[0] if args else kwargs.pop("module"), **kwargs)

    return make
