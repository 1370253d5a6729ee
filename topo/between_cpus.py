"""The rate of the links between the CPUs of a machine, if nothing states it.

No tool prints it, and it varies: boards join two sockets by one to four links. The CPU's name
decides, else the machine's era, which is the PCIe generation of its GPUs. All these rates are
assumed; a bound that depends on one is conditional (synth/bounds/assumptions.py).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

from .devices import Device, Link
from .graph import Topology, both_directions
from .hardware import LATENCY_us, LOCAL_GBps, QPI_DATASHEET_GBps, inter_cpu_GBps_of
from .notes import Source, assumed

# GB/s in one direction by the lowest PCIe generation of the GPUs. The first is NCCL's count for
# Emerald Rapids (graph/topo.h); measured between two EPYC 9575F: rtx6kpro on GitHub, page
# hardware/asus-esc8000a-e13p-broadcom-switches.md, 36 to 40, and hardware/pcie-bandwidth.md.
_ERAS: tuple[tuple[int, Fraction, str], ...] = (
    (5, Fraction(40), "in machines of PCIe Gen5, where 32 to 43 were measured (two EPYC 9005)"),
    (4, Fraction(24), "in machines of PCIe Gen4, as NCCL 2.31 counts EPYC 7003 and 9004"),
    (1, QPI_DATASHEET_GBps, "one QPI link of 9.6 GT/s, as in machines of PCIe Gen3"),
)
# AMD's CPUs by family number, as NCCL 2.31 counts them (graph/topo.h): Zen 1 and 2, 3 and 4, 5.
_ZEN_GBps: Mapping[int, Fraction] = {
    23: Fraction(16),
    25: Fraction(24),
    26: Fraction(32),
}
# The generation of an EPYC is the last digit of its number: 7551, 7742, 7763, 9654, 9575F.
_EPYC = re.compile(r"\bEPYC[^\S\n]{1,3}(?:\d[A-Z]\d|\d\d\d)([1-5])[A-Z]{0,2}\b", re.IGNORECASE)
_ZEN_OF_DIGIT: Mapping[str, int] = {"1": 23, "2": 23, "3": 25, "4": 25, "5": 26}
# Xeons of the scalable families by the second digit (8180, 6248R, 8358, 8480+, 8592+): the number
# of a model of theirs by which NCCL counts.
_XEON = re.compile(
    r"\bXeon(?:\(R\))?[^\S\n]{1,3}(?:Platinum|Gold|Silver|Bronze)[^\S\n]{1,3}[3-9]([1-5])\d\d",
    re.IGNORECASE,
)
_MODEL_OF_XEON: Mapping[str, int] = {"1": 85, "2": 85, "3": 106, "4": 143, "5": 207}


def find_cpu(text: str) -> tuple[str, dict[str, str]] | None:
    """Return the CPU's name that a text mentions, and its model by the keys of NCCL's XML.

    The keys are arch, vendor, familyid and modelid; all values are texts. Return None if the text
    names no CPU that is known, or CPUs of several models. If several names stand for one model, the
    name is the first of them in the text.
    """
    found = {m[0]: ("AuthenticAMD", _ZEN_OF_DIGIT[m[1]], 1) for m in _EPYC.finditer(text)}
    found |= {m[0]: ("GenuineIntel", 6, _MODEL_OF_XEON[m[1]]) for m in _XEON.finditer(text)}
    if len(set(found.values())) != 1:
        return None
    name, (vendor, family, model) = next(iter(found.items()))
    return " ".join(name.split()), {
        "arch": "x86_64",
        "vendor": vendor,
        "familyid": str(family),
        "modelid": str(model),
    }


def assume_between_cpus(
    pcie_generation: int | None, cpu: Mapping[str, object] | None = None, name: str = ""
) -> tuple[Fraction, Source]:
    """Return GB/s between two CPUs in one direction, and its source, which is of kind assumed.

    `cpu` is the model by the keys of NCCL's XML (arch, vendor, familyid, modelid), None if it is
    not known, and `name` what a text calls it. If NCCL counts no rate for the model,
    `pcie_generation` decides: the newest of the GPUs, None if it is not known, which counts as
    Gen3.
    """
    counted = _count_model(cpu or {})
    if counted is not None:
        rate, library = counted
        return rate, assumed(f"{name or 'by the CPU model'}, by {library}'s count")
    return _assume_by_era(pcie_generation)


def _assume_by_era(pcie_generation: int | None) -> tuple[Fraction, Source]:
    generation = pcie_generation or 1
    rate, why = next((rate, why) for least, rate, why in _ERAS if generation >= least)
    return rate, assumed(why)


def follow_era(topology: Topology, pcie_generation: int) -> Topology:
    """Return the machine with the rate between its CPUs of another era, where an era gave it.

    `pcie_generation` is that era, known better than when the file was read. Rates that a CPU's
    model gave, or that a source states, stay.
    """
    eras = {assumed(why) for _, _, why in _ERAS}
    rate, source = _assume_by_era(pcie_generation)
    return replace(
        topology,
        links=tuple(
            replace(link, bandwidth_GBps=rate, source=source)
            if link.kind == "smp" and link.source in eras
            else link
            for link in topology.links
        ),
    )


def _count_model(cpu: Mapping[str, object]) -> tuple[Fraction, str] | None:
    """Return the rate that NCCL counts between CPUs of a model, and the version; None if none."""
    vendor, family = cpu.get("vendor"), str(cpu.get("familyid"))
    if vendor == "AuthenticAMD" and family.isdecimal() and int(family) in _ZEN_GBps:
        return _ZEN_GBps[int(family)], "NCCL 2.31"
    rate = inter_cpu_GBps_of(cpu)
    return None if rate == LOCAL_GBps else (rate, "NCCL")


def join_cpus(a: str, b: str, rate: tuple[Fraction, Source]) -> tuple[Link, Link]:
    """Return the links between two CPUs, given by their ids, in both directions.

    `rate` is GB/s in one direction with its source, as `assume_between_cpus` returns it.
    """
    GBps, source = rate
    return both_directions(Link(a, b, GBps, LATENCY_us["smp"], "smp", source=source))


def join_all_cpus(cpus: Sequence[Device], pcie_generation: int | None) -> Iterator[Link]:
    """Yield links between all CPUs of a machine, at the rate of their model or of their era.

    The model is that of the first CPU, in its `extra`; there must be one. `pcie_generation` is the
    newest of the machine's GPUs, None if it is not known.
    """
    model = cpus[0].extra
    rate = assume_between_cpus(pcie_generation, model, str(model.get("name", "")))
    for a, b in combinations(cpus, 2):
        yield from join_cpus(a.id, b.id, rate)
