"""Make up attributes of CPUs and GPUs that NCCL's XML must have and the topology does not.

NCCL queries its host for attributes that a file leaves out, and stops if the host has no answer.
Made-up attributes fit the rates of the topology as well as NCCL's own table allows. They are marked
by the attribute MADE_UP of their element, so that reading the file again does not take them for
facts. A board is a GPU as it is sold, with its datasheet's links (topo/boards.py).
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction

from ...boards import BOARDS
from ...devices import Device
from ...errors import InputError
from ...facts import Facts, keys, load_facts
from ...formats.nccl_xml.partial_topology import (
    CAPABILITY,
    CPU_ATTRIBUTES,
    CPU_MODEL,
    TOPOPLAN_PREFIX,
)
from ...graph import Link, Topology
from ...hardware import inter_cpu_GBps_of
from ..machine_details.view import DetailedView

MADE_UP = TOPOPLAN_PREFIX + "made_up"

SKYLAKE = {"arch": "x86_64", "vendor": "GenuineIntel", "familyid": "6", "modelid": "85"}
# The x86 CPUs with different rates between sockets in NCCL: Skylake, Broadwell, Sapphire and
# Emerald Rapids, EPYC.
_CPUS: tuple[Mapping[str, str], ...] = (
    SKYLAKE,
    {**SKYLAKE, "modelid": "79"},
    {**SKYLAKE, "modelid": "143"},
    {**SKYLAKE, "modelid": "207"},
    {"arch": "x86_64", "vendor": "AuthenticAMD", "familyid": "25", "modelid": "1"},
)
# Compute capability, times ten, by a GPU's NVLinks if no board has their rate: H100, A100, V100,
# P100, and cards such as L40S.
_SM_OF_NVLINKS = ((18, 90), (12, 80), (6, 70), (1, 60), (0, 89))


def make_up_cpu(topology: Topology, cpu: Device, listed: Mapping[str, str]) -> dict[str, str]:
    """Return the model attributes to add to a CPU's element; empty if those `listed` suffice.

    `listed` are the attributes that the topology knows; those of the model are kept in the result.
    The mark `MADE_UP` is among the result.
    """
    arch, vendor = listed.get("arch"), listed.get("vendor")
    if arch in ("arm64", "ppc64") or (arch and vendor):
        return {}
    if any(x.kind == "c2c" for x in topology.links):
        made_up: Mapping[str, str] = {"arch": "arm64"}  # GPUs with C2C are on Grace
    else:
        rates = [x.bandwidth_GBps for x in topology.links if x.kind == "smp" and x.src == cpu.id]
        fitting = [each for each in _CPUS if vendor in (None, each["vendor"])] or [SKYLAKE]
        wanted = min(rates, default=inter_cpu_GBps_of(fitting[0]))
        made_up = min(fitting, key=lambda each: abs(inter_cpu_GBps_of(each) - wanted))
    return {
        **made_up,
        **{key: listed[key] for key in CPU_ATTRIBUTES if key in listed},
        MADE_UP: CPU_MODEL,
    }


def view_machine(topology: Topology) -> DetailedView:
    """Return a view of a topology and its facts; without any if they cannot be read (no error)."""
    try:
        return DetailedView(topology, load_facts(topology.extra, topology.name))
    except InputError:
        return DetailedView(topology, Facts())


def make_up_capability(machine: DetailedView, gpu: str, links: Iterable[Link]) -> dict[str, str]:
    """Return the attribute `sm` of a GPU, its compute capability times ten, known or made up.

    It is that of the machine's facts. Else it has the mark `MADE_UP`, and is that of the board with
    the GPU's name or PCI id, else one that fits the `links` from the GPU `gpu` (its id).
    """
    known = machine.facts.get_number(machine.find_subject(gpu), keys.GPU_SM)
    if known is not None:
        return {"sm": str(known)}
    board = machine.find_board(gpu)
    if board is not None and board.sm is not None:
        return {"sm": str(board.sm), MADE_UP: CAPABILITY}
    nvlinks = [link for link in links if link.kind == "nvlink"]
    count = sum(link.count for link in nvlinks)
    fastest = max((link.bandwidth_GBps / link.count for link in nvlinks), default=Fraction(0))
    return {"sm": str(_find_capability(count, fastest)), MADE_UP: CAPABILITY}


def _find_capability(count: int, rate_GBps: Fraction) -> int:
    """Return the compute capability, times ten, of a GPU with `count` NVLinks of a rate each.

    Boards with this rate and enough links decide: modules before cards, those with the fewest links
    first, then the oldest.
    """
    fitting = [
        (board.is_card, board.wires, board.sm)
        for board in BOARDS
        if board.sm is not None and board.wires >= count and board.wire_GBps == rate_GBps
    ]
    if count and fitting:
        return min(fitting)[2]
    return next(sm for least, sm in _SM_OF_NVLINKS if count >= least)
