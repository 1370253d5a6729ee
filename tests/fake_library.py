"""The stand-in of libnvidia-ml.so.1, compiled from fake_nvml.c, where pynvml finds it: in a process
or in this one.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pynvml
import pytest
from fake_machine import Machine

SOURCE = Path(__file__).with_name("fake_nvml.c")


@cache
def library(without: tuple[str, ...] = ()) -> Path:
    """The folder of a compiled libnvidia-ml.so.1 that lacks some symbols; the test skips where
    there is no compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip(
            "no C compiler (cc, gcc or clang) to build the stand-in of libnvidia-ml.so.1 with"
        )
    folder = Path(_folder().name) / f"nvml-{len(list(Path(_folder().name).iterdir()))}"
    folder.mkdir()
    versions = folder / "versions"
    versions.write_text(
        "{ global: nvml*;" + (f" local: {'; '.join(without)};" if without else "") + " };\n"
    )
    options = (
        "-std=c11",
        "-O1",
        "-shared",
        "-fPIC",
        "-Wl,-soname,libnvidia-ml.so.1",
        f"-Wl,--version-script={versions}",
    )
    built = subprocess.run(
        [compiler, *options, "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)],
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    return folder


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Goes with the process."""
    return tempfile.TemporaryDirectory(prefix="topoplan-nvml-")


def serve(monkeypatch: pytest.MonkeyPatch, machine: Machine, without: tuple[str, ...] = ()) -> None:
    """Makes pynvml in this process find `machine`."""
    description = Path(_folder().name) / "served.txt"
    description.write_text(machine.text())
    monkeypatch.setenv("FAKE_NVML_MACHINE", str(description))
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(library(without) / "libnvidia-ml.so.1")))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})


# Variables of whoever runs the tests, which choose among GPUs that the stand-in does not have.
HIDDEN = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")


def variables(machine: Machine, folder: Path, without: tuple[str, ...] = ()) -> dict[str, str]:
    """What a process needs beside its environment to find `machine` at work; its description is
    written into `folder`.
    """
    description = folder / "machine.txt"
    description.write_text(machine.text())
    return {"LD_LIBRARY_PATH": str(library(without)), "FAKE_NVML_MACHINE": str(description)}


def environment(machine: Machine, folder: Path, without: tuple[str, ...] = ()) -> dict[str, str]:
    """The whole environment of such a process."""
    kept = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    return kept | variables(machine, folder, without)
