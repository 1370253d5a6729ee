"""Load the library in C++, and number what it reduces.

It is built when topoplan is installed, if there is a compiler; without it everything else works.
"""

import ctypes
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist

from ..reductions import ReduceOp

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
_BY_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def suits(dtype: torch.dtype, op: ReduceOp | None) -> bool:
    """Return whether programs of a dtype can be played; `op` is None if nothing is reduced."""
    if op is None:
        return dtype.itemsize in _BY_WIDTH
    return dtype in _DTYPES and op in _REDUCTIONS


def number(dtype: torch.dtype, op: ReduceOp | None) -> tuple[int, int]:
    """Return the library's numbers of a dtype and a reduction that suit it (see `suits`)."""
    if op is None:
        return _DTYPES.index(_BY_WIDTH[dtype.itemsize]), 0
    return _DTYPES.index(dtype), _REDUCTIONS[op]


@cache
def load_library() -> ctypes.CDLL | str:
    """Return the library, or why it cannot be used, as one line."""
    path = Path(__file__).parent / "_library.abi3.so"
    if not path.is_file():
        return "the library in C++ was not built; install topoplan where a C++ compiler is at hand"
    try:
        library = ctypes.CDLL(str(path))
        _declare_functions(library)
    except OSError as error:
        return f"the library in C++ cannot be loaded: {error}"
    except AttributeError as error:  # in a checkout that was updated
        return f"the library in C++ is another version's ({error}); install topoplan again"
    return library


def _declare_functions(library: ctypes.CDLL) -> None:
    pointer, number_64, number_32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    _declare(library, "topoplan_lines_bytes", number_64, number_32)
    _declare(
        library, "topoplan_join",
        pointer, pointer, number_64, number_32, number_32, number_32, pointer,
    )  # fmt: skip
    _declare(library, "topoplan_leave", None, pointer)
    _declare(library, "topoplan_fail", None, pointer)
    _declare(
        library, "topoplan_prepare",
        pointer, pointer, pointer, pointer, number_64, number_64, number_64, ctypes.c_uint32,
        pointer,
    )  # fmt: skip
    _declare(library, "topoplan_discard", None, pointer)
    _declare(library, "topoplan_play", number_32, pointer, ctypes.c_double)
    _declare(library, "topoplan_pipes_bytes", number_64, number_32)
    _declare(
        library, "topoplan_pipes_join", pointer, pointer, number_32, number_32, number_32, pointer
    )
    _declare(library, "topoplan_pipes_leave", None, pointer)
    _declare(library, "topoplan_pipes_fail", None, pointer)
    _declare(
        library, "topoplan_pipes_prepare",
        pointer, pointer, pointer, pointer, pointer, number_32, number_64, number_64,
        ctypes.c_uint32, pointer,
    )  # fmt: skip
    _declare(library, "topoplan_pipes_discard", None, pointer)
    _declare(
        library, "topoplan_pipes_play",
        number_32, pointer, number_64, number_64, ctypes.c_double, number_32,
    )  # fmt: skip
    _declare(
        library, "topoplan_mpi_prepare",
        pointer, pointer, pointer, number_64, number_64, pointer, pointer, number_64, number_64,
        number_32, pointer, pointer,
    )  # fmt: skip
    _declare(library, "topoplan_mpi_discard", None, pointer)
    _declare(library, "topoplan_mpi_play", number_32, pointer, ctypes.c_double, number_32)
    _declare(library, "topoplan_mpi_error", number_32, pointer)


def _declare(library: ctypes.CDLL, name: str, result: object, *arguments: object) -> None:
    function: object = getattr(library, name)
    function.restype, function.argtypes = result, arguments  # type: ignore[attr-defined]
