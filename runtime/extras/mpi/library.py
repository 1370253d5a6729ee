"""Load MPI through mpi4py and describe it, with one clear line if it cannot be used."""

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

from ....topo.errors import InputError

_MPICHS = "libmpi.so.12"
# Environment variables in which launchers name the job.
_JOBS = ("PMIX_NAMESPACE", "OMPI_MCA_orte_ess_jobid", "PMI_JOBID", "SLURM_STEP_ID")
_HOW = "install it beside an MPI (Debian: apt-get install openmpi-bin): pip install 'topoplan[mpi]'"


@cache
def load_mpi() -> Any:
    """Return the module mpi4py.MPI, initialized.

    Raise InputError if it is missing, or its MPI does not support threads.
    """
    try:
        from mpi4py import MPI
    except ImportError as error:
        missing = "mpi4py is not installed" if error.name == "mpi4py" else str(error)
        how = (
            "mpi4py looks for MPICH under this name, and Debian calls it libmpich.so.12: link the "
            "one to the other in a folder of LD_LIBRARY_PATH (ln -s /usr/lib/*/libmpich.so.12 "
            f"FOLDER/{_MPICHS})"
            if _MPICHS in missing
            else _HOW
        )
        raise InputError(f"transport mpi: {' '.join(missing.split())}; {how}") from error
    except RuntimeError as error:  # mpi4py's wheels look for an MPI when they are imported
        raise InputError(
            f"transport mpi: mpi4py found no MPI ({' '.join(str(error).split())}); {_HOW}"
        ) from error
    level = MPI.Query_thread()
    if level < MPI.THREAD_SERIALIZED:
        raise InputError(
            "transport mpi: MPI was initialised with "
            f"MPI_THREAD_{'SINGLE' if level == MPI.THREAD_SINGLE else 'FUNNELED'}, but calls come "
            "from several threads; initialise it with "
            "MPI_THREAD_SERIALIZED or more (mpi4py does, unless mpi4py.rc says otherwise)"
        )
    return MPI


def name_job() -> str:
    """Return the name that the MPI launcher gave this process's job; "" if it gave none."""
    return next((os.environ[key] for key in _JOBS if key in os.environ), "")


def describe_mpi() -> str:
    """Return the name and version of the MPI in use: "Open MPI 4.1.4"."""
    name, version = load_mpi().get_vendor()
    return f"{name} {'.'.join(map(str, version))}"


@cache
def takes_gpu_memory() -> bool:
    """Return whether this MPI declares that it sends and receives CUDA memory."""
    library: Any = _open_library()
    if hasattr(library, "MPIX_Query_cuda_support"):  # Open MPI, MVAPICH
        return bool(library.MPIX_Query_cuda_support())
    if hasattr(library, "MPIX_GPU_query_support"):  # MPICH: 0 is MPIX_GPU_SUPPORT_CUDA
        answer = ctypes.c_int(0)  # the function's own result is an error code
        return library.MPIX_GPU_query_support(0, ctypes.byref(answer)) == 0 and bool(answer.value)
    return False


def _open_library() -> ctypes.CDLL | None:
    load_mpi()
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        path = "".join(line.partition("/")[1:])
        if Path(path).name.startswith(("libmpi.so", "libmpich.so", "libmpi_")):
            library = ctypes.CDLL(path)
            if hasattr(library, "MPI_Init_thread"):
                return library
    return None
