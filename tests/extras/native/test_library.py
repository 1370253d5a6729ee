"""The library in C++: what it can add up, and why it is not used where it cannot be loaded."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from topoplan.runtime.extras.native import library
from topoplan.runtime.reductions import IN_PLACE_REDUCTIONS, REDUCIBLE_DTYPES


@pytest.fixture(autouse=True)
def unloaded() -> None:
    library.load_library.cache_clear()


def test_it_adds_up_what_programs_do_and_copies_what_is_as_wide_as_a_number() -> None:
    for dtype in REDUCIBLE_DTYPES:
        for op in IN_PLACE_REDUCTIONS:
            assert library.suits(dtype, op)
    assert len({library.number(dtype, dist.ReduceOp.SUM) for dtype in REDUCIBLE_DTYPES}) == 9
    assert not library.suits(torch.bool, dist.ReduceOp.SUM)
    assert library.suits(torch.bool, None) and library.suits(torch.complex64, None)
    assert not library.suits(torch.complex128, None)
    assert library.number(torch.bool, None) == library.number(torch.uint8, None)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "was not built; install topoplan where a C\\+\\+ compiler is at hand"),
        (b"no library", "cannot be loaded"),
    ],
)
def test_one_that_cannot_be_used_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, why: str
) -> None:
    monkeypatch.setattr(library, "__file__", str(tmp_path / "library.py"))
    if content is not None:
        (tmp_path / "_library.abi3.so").write_bytes(content)
    found = library.load_library()
    assert isinstance(found, str) and "\n" not in found
    assert re.search(why, found)


def test_one_of_another_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(library._FUNCTIONS, "topoplan_of_tomorrow", (None,))
    if not (Path(library.__file__).parent / "_library.abi3.so").is_file():
        pytest.skip("the library was not built")
    found = library.load_library()
    assert not isinstance(found, ctypes.CDLL) and "another version's" in found
