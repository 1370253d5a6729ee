"""Published results of nccl-tests beside bounds and modelled stock.

    python -m benchmarks published

The figures are those of `published.tsv`: GB/s algbw at large sizes, as published for the machine in
the second column. Bounds are at the datasheet's rates, with NVSwitches that add (NVLS) where that
was on. Stock on one host is NCCL's own count of what it finds; on several hosts it is the most that
flat rings, or on two hosts trees, carry; where NCCL finds no rings, none. "why" explains a
row whose measurement says little of either, "note" why stock is far from another. Ends with 1 if a
measurement exceeds its bound, or if stock is .85 to 1.1 of what was measured in less than nine of
ten rows of single hosts without a "why". Continues from the results of --results FILE.

Machines: `nvswitch HOSTSxGPUS LINKSxGBps [nic=GBps]`, `pairs ...` with NVLinks between all two GPUs
of a host, and `pcie GPUS+GPUS...|GPUS... GBps [uplink=GBps] [sockets=GBps] [sm=N]` with a switch
for each group, "|" between sockets, and the compute capability (times ten), by which NCCL searches.
"""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path

from harness import make_parser

from topoplan.synth.bounds.cuts import cut_bound
from topoplan.synth.extras.judge.options import find_limits
from topoplan.synth.extras.stock.model import StockModel, model_stock
from topoplan.synth.extras.stock.on_paper import StockRate, rate_stock
from topoplan.synth.ir.collective import Collective
from topoplan.topo.graph import Device, InNetwork, Link, Topology, both_directions
from topoplan.topo.loader.resolve import load_for_planning

DATA = Path(__file__).with_suffix(".tsv")
# Tables round to two digits.
_ROUNDING = 1.005
_LEAST, _MOST, _WITHIN = 0.85, 1.1, 0.9
# Ranks up to which prices are sought for bounds; beyond, they are those of cuts.
_MAX_PRICED_RANKS = 128
# GB/s that NCCL counts for slots of 16 lanes by their generation, and how files name them.
_SLOT_GBps = {3: 12, 4: 24, 5: 48}
_SLOTS = {
    generation: {"link_speed": f"{speed} GT/s PCIe", "link_width": 16}
    for generation, speed in ((3, "8.0"), (4, "16.0"), (5, "32.0"))
}
# The CPUs of all machines of PCIe in the data.
_EPYC = {"arch": "x86_64", "vendor": "AuthenticAMD", "familyid": "26", "modelid": "2"}
# Links of an NVSwitch's GPU from which it adds (Hopper).
_ADDING_LINKS = 18


@dataclass(frozen=True)
class Row:
    """A measurement with its bound and modelled stock in GB/s algbw."""

    id: str
    machine: str
    collective: str
    nvls: str
    measured: float
    bound: float
    stock: float | None
    hosts: int
    why: str
    note: str = ""

    @property
    def is_above(self) -> bool:
        """Whether the measurement exceeds the bound."""
        return self.measured > self.bound * _ROUNDING

    @property
    def counts(self) -> bool:
        """Whether it says how well stock is modelled on one host."""
        return self.hosts == 1 and self.stock is not None and not self.why

    @property
    def is_close(self) -> bool:
        """Whether modelled stock is near what was measured."""
        return self.stock is not None and _LEAST <= self.stock / self.measured <= _MOST


def build(machine: str) -> Topology:
    """Return the machine that a text names."""
    kind, size, rate, *rest = machine.split()
    options = dict(item.split("=") for item in rest)
    if kind == "pcie":
        uplink, between = (Fraction(options.get(key, rate)) for key in ("uplink", "sockets"))
        return _build_pcie(size, Fraction(rate), uplink, between, options.get("sm"))
    hosts, gpus = map(int, size.split("x"))
    links, GBps = rate.split("x")
    nic = Fraction(options["nic"]) if "nic" in options else None
    return _build_nvlinks(kind, hosts, gpus, int(links), Fraction(GBps), nic)


def _build_nvlinks(
    kind: str, hosts: int, gpus: int, count: int, wire_GBps: Fraction, nic: Fraction | None
) -> Topology:
    devices = [Device("net", "switch", family="network")] if nic else []
    links: list[Link] = []

    def join(a: str, b: str, rate: Fraction, of: str, wires: int = 1) -> None:
        links.extend(both_directions(Link(a, b, rate, kind=of, count=wires)))

    for host in range(hosts):
        names = [f"h{host}g{gpu}" for gpu in range(gpus)]
        extra = {"host": f"h{host}"} if hosts > 1 else {}
        devices += [Device(name, extra=extra) for name in names]
        if kind == "nvswitch":
            adds = InNetwork("possible", "NVLS") if count >= _ADDING_LINKS else None
            devices.append(Device(f"h{host}s", "switch", family="nvswitch", in_network=adds))
        for number, name in enumerate(names):
            if kind == "nvswitch":
                join(name, f"h{host}s", count * wire_GBps, "nvlink", count)
            elif count:
                for other in names[:number]:
                    join(name, other, count * wire_GBps, "nvlink", count)
            if nic:
                devices.append(Device(f"h{host}n{number}", "nic"))
                join(name, f"h{host}n{number}", nic, "pcie")
                join(f"h{host}n{number}", "net", nic, "network")
    return Topology(kind, tuple(devices), tuple(links))


def _build_pcie(
    sockets: str, rate: Fraction, uplink: Fraction, between: Fraction, sm: str | None
) -> Topology:
    capability = {} if sm is None else {"sm": int(sm)}
    slot = _SLOTS[max(generation for generation, GBps in _SLOT_GBps.items() if GBps <= rate)]
    devices, links, switches = list[Device](), list[Link](), 0
    for socket, groups in enumerate(sockets.split("|")):
        cpu = f"cpu{socket}"
        devices.append(Device(cpu, "cpu", numa_node=socket, extra=dict(_EPYC)))
        if socket:
            links += both_directions(Link("cpu0", cpu, between, kind="smp"))
        for gpus in map(int, groups.split("+")):
            switch, switches = f"pcie{switches}", switches + 1
            devices.append(Device(switch, "switch", family="pcie", extra={"pci": dict(slot)}))
            links += both_directions(Link(switch, cpu, uplink, kind="pcie"))
            for number in range(gpus):
                gpu = f"{switch}-gpu{number}"
                devices.append(Device(gpu, extra={"pci": dict(slot), **capability}))
                links += both_directions(Link(gpu, switch, rate, kind="pcie"))
    return Topology("pcie", tuple(devices), tuple(links))


def rate(line: dict[str, str]) -> Row:
    """Return a line of the data with its bound and stock."""
    topology, router = load_for_planning(build(line["machine"]))
    n = len(topology.ranks)
    collective = Collective(line["collective"], n)
    hosts = int(line["machine"].split()[1].partition("x")[0]) if "x" in line["machine"] else 1
    if n <= _MAX_PRICED_RANKS:
        limits = find_limits(collective, router)
        bound = limits.one_way_GBps
        if line["nvls"] == "on" and limits.nvls_GBps is not None:
            bound = limits.nvls_GBps
    else:
        bound = cut_bound(collective, topology).algbw_GBps
    stock = None if line["nvls"] == "on" else _rate_stock(line["collective"], topology)
    return Row(
        line["id"], line["machine"], line["collective"], line["nvls"], float(line["algbw_GBps"]),
        float(bound), None if stock is None else float(stock), hosts, line["why"],
        line["note"],
    )  # fmt: skip


def _rate_stock(collective: str, topology: Topology) -> Fraction | None:
    model = model_stock(topology)
    if isinstance(model, StockModel) and collective != "alltoall":
        # NCCL's own count leaves out what packets take. An allreduce is two of the others. Where
        # NCCL finds no channels, it counts nothing that was ever measured.
        if model.rings.is_fallback:
            return None
        if collective != "allreduce":
            return 2 * model.rings.algbw_GBps
        return model.algbw_GBps[model.pick(1 << 30)]
    stock = rate_stock(collective, topology)
    return stock.algbw_GBps if isinstance(stock, StockRate) else None


def main(argv: list[str] | None = None) -> int:
    """Print the table and return the exit code."""
    parser = make_parser(__doc__)
    parser.add_argument("--results", metavar="FILE", help="keep rows here, and continue from them")
    args = parser.parse_args(argv)
    file = Path(args.results) if args.results else None
    done = json.loads(file.read_text()) if file is not None and file.is_file() else []
    with DATA.open(encoding="utf-8") as text:
        lines = list(csv.DictReader(text, delimiter="\t"))
    rows = [Row(**each) for each in done]
    for line in lines[len(rows) :]:
        rows.append(rate(line))
        if file is not None:
            file.write_text(json.dumps([asdict(row) for row in rows]))
    if args.json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "passed": _passes(rows)}))
    else:
        _print(rows)
    return 0 if _passes(rows) else 1


def _list_single(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.counts]


def _passes(rows: list[Row]) -> bool:
    single = _list_single(rows)
    close = sum(row.is_close for row in single)
    return not any(row.is_above for row in rows) and close >= _WITHIN * len(single)


def _print(rows: list[Row]) -> None:
    titles = ("measured", "bound", "share", "stock", "stock/m.")
    print(f"{'':<4}{'machine':<47}{'':<15}{'NVLS':<5}{''.join(f'{t:>9}' for t in titles)}")
    for row in rows:
        stock = ("-", "-")
        if row.stock is not None:
            stock = f"{row.stock:.1f}", f"{row.stock / row.measured:.2f}"
        cells = (f"{row.measured:.1f}", f"{row.bound:.1f}", f"{row.measured / row.bound:.2f}")
        mark = "above" if row.is_above else "far" if row.counts and not row.is_close else ""
        print(
            f"{row.id:<4}{row.machine:<47}{row.collective:<15}{row.nvls:<5}"
            f"{''.join(f'{cell:>9}' for cell in (*cells, *stock))}  "
            f"{': '.join(filter(None, (mark, row.why or row.note)))}"
        )
    single, above = _list_single(rows), [row.id for row in rows if row.is_above]
    print(
        f"{len(rows)} rows; above the bound: {', '.join(above) or 'none'}; stock within {_LEAST} "
        f"to {_MOST} of measured in {sum(row.is_close for row in single)} of {len(single)} rows of "
        "single hosts"
    )


if __name__ == "__main__":
    sys.exit(main())
