"""Make up what NCCL's XML must say of CPUs and GPUs for NCCL to load it, where the topology does
not know it.

NCCL asks the host that it runs on for what a file leaves out, and stops where that has no answer.
What is made up fits the rates of the topology as well as NCCL's own table allows, is marked, and is
not taken for a fact when the file is read again.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from ...devices import Device
from ...errors import InputError
from ...facts import Facts, keys, load_facts
from ...facts.keys import gpu_subject
from ...facts.view import MachineView
from ...graph import Topology
from ...hardware import inter_cpu_GBps_of
from .partial_topology import TOPOPLAN_PREFIX

MADE_UP = TOPOPLAN_PREFIX + "made_up"
# What of a cpu element and of a gpu element is made up, as the mark says.
CPU_MODEL, CAPABILITY = "model", "sm"
CPU_ATTRIBUTES = ("arch", "vendor", "familyid", "modelid")

_SKYLAKE = {"arch": "x86_64", "vendor": "GenuineIntel", "familyid": "6", "modelid": "85"}
_ARM = {"arch": "arm64"}
# CPUs of x86 that NCCL tells apart by the rate between sockets: Skylake, Broadwell, Sapphire and
# Emerald Rapids, EPYC.
_CPUS: tuple[Mapping[str, str], ...] = (
    _SKYLAKE,
    {**_SKYLAKE, "modelid": "79"},
    {**_SKYLAKE, "modelid": "143"},
    {**_SKYLAKE, "modelid": "207"},
    {"arch": "x86_64", "vendor": "AuthenticAMD", "familyid": "25", "modelid": "1"},
)
_SM_OF_LANES = ((18, 90), (12, 80), (6, 70), (1, 60))
_SM_OF_CARDS = 89  # of GPUs without NVLink
_FAST_LANE_GBps = Fraction(40)
_SM_OF_FAST_LANES = 100


def make_up_cpu(topology: Topology, cpu: Device, listed: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes of a CPU whose file gives those `listed`, none where these tell what it
    is.
    """
    arch, vendor = listed.get("arch"), listed.get("vendor")
    if arch == "arm64" or arch == "ppc64" or (arch and vendor):
        return {}
    if any(x.kind == "c2c" for x in topology.links):
        made_up: Mapping[str, str] = _ARM  # GPUs with C2C are on Grace
    else:
        rates = [x.bandwidth_GBps for x in topology.links if x.kind == "smp" and x.src == cpu.id]
        fitting = [each for each in _CPUS if vendor in (None, each["vendor"])] or [_SKYLAKE]
        wanted = min(rates, default=inter_cpu_GBps_of(fitting[0]))
        made_up = min(fitting, key=lambda each: abs(inter_cpu_GBps_of(each) - wanted))
    known = {key: listed[key] for key in CPU_ATTRIBUTES if key in listed}
    return {**made_up, **known, MADE_UP: CPU_MODEL}


class Capabilities:
    """The compute capabilities, times ten, of a topology's GPUs: as its facts have them, else made
    up.
    """

    def __init__(self, topology: Topology) -> None:
        try:
            facts = load_facts(topology.extra, topology.name)
        except InputError:
            facts = Facts()  # the doctor says that they cannot be read
        self._view = MachineView(topology, facts)
        self._lanes: dict[str, int] = {}
        self._fastest: dict[str, Fraction] = {}
        for link in topology.links:
            if link.kind == "nvlink":
                self._lanes[link.src] = self._lanes.get(link.src, 0) + link.count
                rate = link.bandwidth_GBps / link.count
                self._fastest[link.src] = max(rate, self._fastest.get(link.src, rate))

    def find_attributes(self, gpu: str) -> dict[str, str]:
        """Return the attribute of a GPU whose file does not give it, marked where it is made up by
        its NVLinks.
        """
        known = self._view.facts.get_number(
            gpu_subject(self._view.find_gpu_index(gpu)), keys.GPU_SM
        )
        if known is not None:
            return {"sm": str(known)}
        lanes = self._lanes.get(gpu, 0)
        sm = next((sm for least, sm in _SM_OF_LANES if lanes >= least), _SM_OF_CARDS)
        if lanes and self._fastest[gpu] >= _FAST_LANE_GBps:
            sm = _SM_OF_FAST_LANES
        return {"sm": str(sm), MADE_UP: CAPABILITY}
