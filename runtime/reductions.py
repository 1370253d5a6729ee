"""Reductions of tensors, and checks and views of the tensors.

AVG is a sum divided by the number of ranks. Error feedback is a tensor of rounding errors, added to
the input of the next compressed call.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ..topo.errors import InputError

# SUM, AVG and so on, as torch enumerates them.
ReduceOp = dist.ReduceOp.RedOpType

# Dtypes that programs add up; complex numbers and booleans are left to the stock collectives.
REDUCIBLE_DTYPES = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
)  # fmt: skip
# For each reduction, the operation that reduces a list of tensors into another list, in place.
IN_PLACE_REDUCTIONS: dict[ReduceOp, Callable[[list[torch.Tensor], list[torch.Tensor]], object]] = {
    dist.ReduceOp.SUM: torch._foreach_add_,
    dist.ReduceOp.AVG: torch._foreach_add_,
    dist.ReduceOp.PRODUCT: torch._foreach_mul_,
    dist.ReduceOp.MAX: torch._foreach_maximum_,
    dist.ReduceOp.MIN: torch._foreach_minimum_,
}

# The same for arrays: reduce two arrays into a third.
REDUCTIONS_BY_NUMPY: dict[ReduceOp, Callable[..., object]] = {
    dist.ReduceOp.SUM: np.add,
    dist.ReduceOp.AVG: np.add,
    dist.ReduceOp.PRODUCT: np.multiply,
    dist.ReduceOp.MAX: np.maximum,
    dist.ReduceOp.MIN: np.minimum,
}


def kind_of_reduction(op: object) -> object:
    """Return the enumeration value of a reduction; torch also passes them wrapped in a ReduceOp."""
    return op if isinstance(op, ReduceOp) else getattr(op, "op", op)


def can_reduce(dtype: torch.dtype, op: object) -> bool:
    """Return whether a reduction of tensors of a dtype is supported."""
    return (
        op in IN_PLACE_REDUCTIONS
        and dtype in REDUCIBLE_DTYPES
        and (op != dist.ReduceOp.AVG or dtype.is_floating_point)
    )


def check_reduction(op: object, dtype: torch.dtype) -> ReduceOp:
    """Return a reduction as its enumeration value, after checking that it is supported.

    Raise InputError if it is not supported for the dtype; `kind_of_reduction` does not check.
    """
    kind = kind_of_reduction(op)
    if not isinstance(kind, ReduceOp) or kind not in IN_PLACE_REDUCTIONS:
        raise InputError(
            f"reduction {kind} is not supported; expected SUM, AVG, PRODUCT, MAX or MIN"
        )
    if dtype not in REDUCIBLE_DTYPES:
        raise InputError(
            f"{dtype} tensors cannot be reduced; expected one of "
            f"{', '.join(map(dtype_name, REDUCIBLE_DTYPES))}"
        )
    if not can_reduce(dtype, kind):
        raise InputError(f"AVG of {dtype} is not a whole number; use SUM, or a floating-point type")
    return kind


def check_are_tensors(call: str, values: Sequence[object]) -> None:
    """Raise InputError unless all `values`, arguments of the collective `call`, are tensors."""
    for value in values:
        if not isinstance(value, torch.Tensor):
            what = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
            how = (
                "; pass torch.from_numpy(array), which shares its memory"
                if isinstance(value, np.ndarray)
                else ""
            )
            raise InputError(f"{call}: got {what}, expected a torch.Tensor{how}")


def check_tensors(
    call: str, tensors: tuple[torch.Tensor, ...], device_type: str, *, compressed: bool
) -> None:
    """Raise InputError if a collective cannot work on a tensor, or the tensors differ in dtype.

    `call` names the collective; the first tensor is written to, others are only read; all must be
    on `device_type` ("cpu", "cuda"). `compressed` says whether values are encoded in messages, for
    which they must be floating-point.
    """
    for number, tensor in enumerate(tensors):
        if tensor.layout != torch.strided:
            raise InputError(
                f"{call}: {tensor.layout} tensors are not supported; expected a dense one"
            )
        if (
            not number
            and not tensor.is_contiguous()
            and any(n > 1 and not by for by, n in zip(tensor.stride(), tensor.shape, strict=True))
        ):
            raise InputError(
                f"{call}: the tensor is expanded, its elements share memory; pass a clone"
            )
        if tensor.device.type != device_type:
            raise InputError(
                f"{call}: the tensor is on {tensor.device}, the group works on {device_type}"
            )
        if tensor.dtype != tensors[0].dtype:
            raise InputError(
                f"{call}: input and output differ in dtype: {tensor.dtype} and {tensors[0].dtype}"
            )
        if compressed and not tensor.dtype.is_floating_point:
            raise InputError(
                f"{call}: {tensor.dtype} is not compressed; expected floating-point tensors"
            )


def check_residual(tensor: torch.Tensor, reduction: ReduceOp, residual: torch.Tensor) -> None:
    """Raise InputError if `residual` cannot hold the error feedback of reducing `tensor`."""
    if reduction not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        raise InputError(f"error feedback is for sums and averages, not for {reduction}")
    if residual.dtype != torch.float32 or residual.numel() != tensor.numel():
        raise InputError(
            f"residual: {residual.numel()} elements of {residual.dtype}; expected "
            f"{tensor.numel()} of torch.float32"
        )
    if residual.device != tensor.device or not residual.is_contiguous():
        raise InputError(
            f"residual: on {residual.device}, strides {residual.stride()}; expected it contiguous "
            f"on {tensor.device}"
        )


def share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two contiguous tensors have bytes in common."""
    return max(a.data_ptr(), b.data_ptr()) < min(a.data_ptr() + a.nbytes, b.data_ptr() + b.nbytes)


def flatten(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's elements in one dimension: a view if it is contiguous, else a copy."""
    tensor = tensor.detach()
    return tensor.view(-1) if tensor.is_contiguous() else tensor.reshape(-1).contiguous()


def make_contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor itself if its elements are contiguous, else a copy that is."""
    return (
        tensor.detach().contiguous()
        if tensor.layout == torch.strided and not tensor.is_contiguous()
        else tensor
    )


def borrow(tensor: torch.Tensor) -> torch.Tensor:
    """Return a flat view of a contiguous CPU tensor that owns nothing.

    It is valid only while the tensor's memory is.
    """
    with torch.inference_mode(False):
        if not tensor.numel():  # without elements there is no address to make a view of
            return torch.empty(0, dtype=tensor.dtype)
        raw = (ctypes.c_uint8 * tensor.nbytes).from_address(tensor.data_ptr())
        return torch.from_numpy(np.ctypeslib.as_array(raw)).view(tensor.dtype)


def in_inference_mode(function: Callable[..., Any], *arguments: Any) -> None:
    """Call `function(*arguments)` in torch's inference mode, and discard the result.

    Buffers are reused from call to call, and those made in inference mode serve all callers.
    """
    with torch.inference_mode():
        function(*arguments)


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name without its module: "float32"."""
    return str(dtype).removeprefix("torch.")
