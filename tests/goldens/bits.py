"""Bits of results on real ranks, by dtype, operation, size, executor and codec."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from launch import run_on_hosts, run_ranks
from ranks import result_bits

import topoplan
from topoplan.synth.ir.collective import COLLECTIVES

_RANKS, _HOSTS = 4, (2, 2)
MESSAGES, SHARED = "point-to-point", "one-sided"


def record() -> dict[str, Any]:
    """Return the hashes of all results, those of all ranks of a call in one."""
    with tempfile.TemporaryDirectory(prefix="goldens-") as name:
        folder = Path(name)
        ring = _save(folder, "allreduce", "ring:4", strategy="ring")
        packed = _save(folder, "allreduce", "two-sockets")
        one_shot = _save(folder, "allreduce", "full:4", strategy="one-shot")
        every = {x: _save(folder, x, "switch:4") for x in COLLECTIVES}
        return {
            "ring, messages": run_ranks(result_bits.reductions, _RANKS, ring, MESSAGES)[0],
            "ring, shared memory": run_ranks(result_bits.reductions, _RANKS, ring, SHARED)[0],
            "packing, messages": run_ranks(result_bits.reductions, _RANKS, packed, MESSAGES)[0],
            "packing, within hosts": run_on_hosts(result_bits.reductions, _HOSTS, packed, SHARED)[
                0
            ],
            "collectives, messages": run_ranks(result_bits.collectives, _RANKS, every, MESSAGES)[0],
            "collectives, shared memory": run_ranks(result_bits.collectives, _RANKS, every, SHARED)[
                0
            ],
            "collectives, within hosts": run_on_hosts(
                result_bits.collectives, _HOSTS, every, SHARED
            )[0],
            "codecs": run_ranks(result_bits.compressed, _RANKS, one_shot)[0],
        }


def _save(folder: Path, collective: Any, machine: str, **options: Any) -> str:
    from goldens.plans import find_machine

    path = folder / f"{collective}-{machine}.json"
    topoplan.synthesize(collective, find_machine(machine), **options).save(path)
    return str(path)
