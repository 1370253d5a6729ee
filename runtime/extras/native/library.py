"""Load the C++ library, and translate dtypes and reductions to its numbers.

It is built when topoplan is installed, if there is a compiler; without it everything else works.
"""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ...reductions import ReduceOp

# Numbers of sums.hpp, by their order there.
_DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
)  # fmt: skip
_REDUCTIONS: dict[ReduceOp, int] = {
    dist.ReduceOp.SUM: 0,
    dist.ReduceOp.AVG: 0,
    dist.ReduceOp.PRODUCT: 1,
    dist.ReduceOp.MAX: 2,
    dist.ReduceOp.MIN: 3,
}
# Programs without sums copy elements of any dtype of these widths in bytes.
BY_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

# The results and arguments of the library's functions, by name.
_POINTER, _INT, _INT_64, _UINT_32, _DOUBLE = (
    ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_uint32, ctypes.c_double,
)  # fmt: skip
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "topoplan_lines_bytes": (_INT_64, _INT),
    "topoplan_join": (_POINTER, _POINTER, _INT_64, _INT, _INT, _INT, _POINTER),
    "topoplan_leave": (None, _POINTER),
    "topoplan_fail": (None, _POINTER),
    "topoplan_prepare": (
        _POINTER, _POINTER, _POINTER, _POINTER, _INT_64, _INT_64, _INT_64, _UINT_32, _POINTER,
    ),
    "topoplan_discard": (None, _POINTER),
    "topoplan_play": (_INT, _POINTER, _DOUBLE),
    "topoplan_pipes_bytes": (_INT_64, _INT),
    "topoplan_pipes_join": (_POINTER, _POINTER, _INT, _INT, _INT, _POINTER),
    "topoplan_pipes_leave": (None, _POINTER),
    "topoplan_pipes_fail": (None, _POINTER),
    "topoplan_pipes_prepare": (
        _POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _INT, _INT_64, _INT_64, _UINT_32,
        _POINTER,
    ),
    "topoplan_pipes_discard": (None, _POINTER),
    "topoplan_pipes_play": (_INT, _POINTER, _INT_64, _INT_64, _DOUBLE, _INT),
    "topoplan_mpi_prepare": (
        _POINTER, _POINTER, _POINTER, _INT_64, _INT_64, _POINTER, _POINTER, _INT_64, _INT_64, _INT,
        _POINTER, _POINTER,
    ),
    "topoplan_mpi_discard": (None, _POINTER),
    "topoplan_mpi_play": (_INT, _POINTER, _DOUBLE, _INT),
    "topoplan_mpi_error": (_INT, _POINTER),
}  # fmt: skip


def suits(dtype: torch.dtype, op: ReduceOp | None) -> bool:
    """Return whether the library takes programs of a dtype; `op` is None if nothing is reduced."""
    if op is None:
        return dtype.itemsize in BY_WIDTH
    return dtype in _DTYPES and op in _REDUCTIONS


def number(dtype: torch.dtype, op: ReduceOp | None) -> tuple[int, int]:
    """Return the library's numbers of a dtype and a reduction, which it supports (`suits`).

    With `op` None, when nothing is reduced, any dtype of the same width stands for it.
    """
    if op is None:
        return _DTYPES.index(BY_WIDTH[dtype.itemsize]), 0
    return _DTYPES.index(dtype), _REDUCTIONS[op]


@cache
def load_library() -> ctypes.CDLL | str:
    """Return the C++ library, or one line that says why it cannot be used."""
    path = Path(__file__).parent / "_library.abi3.so"
    if not path.is_file():
        return "the library in C++ was not built; install topoplan where a C++ compiler is at hand"
    try:
        library = ctypes.CDLL(str(path))
        for name, (result, *arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except OSError as error:
        return f"the library in C++ cannot be loaded: {error}"
    except AttributeError as error:  # in a checkout that was updated
        return f"the library in C++ is another version's ({error}); install topoplan again"
    return library
