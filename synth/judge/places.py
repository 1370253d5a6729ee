"""Ranks of a file put on the GPUs of a topology: by PCI address, by number, or by their order where
the file says neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ...topo.derived.hosts import group_by_host
from ...topo.errors import InputError
from ...topo.graph import Device, Topology
from .found import Place


@dataclass(frozen=True)
class Placed:
    """The machine that the ranks run on (of a larger one the GPUs that they have), the number among
    its GPUs of each rank, and in words how they were found.
    """

    topology: Topology
    gpu_of: tuple[int, ...]
    how: str


def place_ranks(topology: Topology, ranks: int, places: Mapping[int, Place], where: str) -> Placed:
    """Return where the ranks run. Raises InputError where the topology cannot be their machine."""
    gpus = [topology.by_id[ident] for ident in topology.ranks]
    if ranks > len(gpus):
        hosts = len({place.host for place in places.values() if place.host}) or None
        on = f" on {hosts} hosts" if hosts and hosts > 1 else ""
        raise InputError(
            f"{where}: {ranks} ranks{on}, and {topology.name} has {len(gpus)} "
            f"GPU{'' if len(gpus) == 1 else 's'}: another "
            "machine; give that of all ranks by --topology (several hosts: dgx-a100:2, or "
            "topo-probe's JSON of them)"
        )
    chosen, how = _choose(gpus, ranks, places, topology, where)
    if len(set(chosen)) < ranks:
        raise InputError(
            f"{where}: two ranks are on one GPU of {topology.name}, which NCCL does not do: "
            "another machine; give theirs by "
            "--topology"
        )
    kept = sorted(chosen)
    number = {gpu: i for i, gpu in enumerate(kept)}
    return Placed(_keep_gpus(topology, kept), tuple(number[gpu] for gpu in chosen), how)


def _choose(
    gpus: list[Device], ranks: int, places: Mapping[int, Place], topology: Topology, where: str
) -> tuple[list[int], str]:
    """Return the number of each rank's GPU, and how it was found."""
    listed = [places.get(rank, Place()) for rank in range(ranks)]
    hosts = list(dict.fromkeys(place.host for place in listed if place.host))
    blocks = group_by_host(gpus)
    if len(hosts) > len(blocks):
        # A host of the file with as many names as ranks is one whose name was not the same twice.
        if (
            len(blocks) == 1
            and len(hosts) > 1
            and len(listed) == ranks
            and all(p.host for p in listed)
        ):
            raise InputError(
                f"{where}: ranks on {len(hosts)} hosts "
                f"({', '.join(hosts[:3])}{' ...' if len(hosts) > 3 else ''}), and "
                f"{topology.name} has one: another machine; give that of all hosts by --topology"
            )
        hosts = []
    block_of = {host: blocks[i] for i, host in enumerate(hosts)} if len(hosts) > 1 else {}

    def find(matches: Callable[[Device, Place, int], bool]) -> list[int] | None:
        """Return the GPU of each rank that alone matches its place, None where one has none or
        several.
        """
        chosen = []
        for place in listed:
            among = block_of.get(place.host or "", range(len(gpus)))
            fit = [i for at, i in enumerate(among) if matches(gpus[i], place, at)]
            if len(fit) != 1:
                return None
            chosen.append(fit[0])
        return chosen

    by_bus = find(lambda gpu, place, _: _has_bus(gpu, place.bus))
    if by_bus is not None:
        return by_bus, "by PCI address"
    if all(place.dev is not None for place in listed):
        by_dev = find(lambda gpu, place, at: place.dev == _dev_of(gpu, at))
        if by_dev is not None and len(set(by_dev)) == ranks:
            return by_dev, "by GPU number" + (
                "" if any(p.physical for p in listed) else " (CUDA's)"
            )
        if (
            ranks <= max((len(b) for b in blocks), default=0)
            and len(hosts) < 2
            and all(p.physical for p in listed)
        ):
            has = sorted({_dev_of(gpu, at) for at, gpu in enumerate(gpus)})
            wrong = sorted({place.dev for place in listed if place.dev is not None} - set(has))
            if wrong:
                raise InputError(
                    f"{where}: names GPU {', '.join(f'{dev:#x}' for dev in wrong[:6])}, and "
                    f"{topology.name} has "
                    f"{has[0]:#x} to {has[-1]:#x}: of another machine; give that one's topology"
                )
    if ranks == len(gpus):
        return list(range(ranks)), "in the order of ranks"
    return list(
        range(ranks)
    ), f"taken for the first {ranks} of {len(gpus)} GPUs, as the file does not say which"


def count_hosts(topology: Topology) -> int:
    """Return how many hosts the GPUs of a topology are in."""
    return len(group_by_host([topology.by_id[ident] for ident in topology.ranks]))


def _has_bus(gpu: Device, bus: str | None) -> bool:
    """Return whether a GPU has a PCI address, of which a file may give the bus alone, or leave out
    the function.
    """
    if bus is None or gpu.bus_id is None:
        return False
    own = gpu.bus_id.lower().split(":")
    if len(own) != 3:
        return False
    if ":" not in bus:
        return own[1] == bus
    domain, number, device = bus.split(":")
    return (
        own[0].lstrip("0") == domain.lstrip("0") and own[1] == number and own[2].startswith(device)
    )


def _dev_of(gpu: Device, at: int) -> int:
    """Return a GPU's number on its host: what its file says, else its place in the order."""
    dev = gpu.extra.get("dev")
    try:
        return int(str(dev)) if dev is not None else at
    except ValueError:
        return at


def _keep_gpus(topology: Topology, kept: list[int]) -> Topology:
    """Return a topology with some of its GPUs, under its own name where these are all."""
    if len(kept) == len(topology.ranks):
        return topology
    gone = set(topology.ranks) - {topology.ranks[i] for i in kept}
    return replace(
        topology,
        name=f"{topology.name}, {len(kept)} of {len(topology.ranks)} GPUs",
        devices=tuple(d for d in topology.devices if d.id not in gone),
        links=tuple(x for x in topology.links if not {x.src, x.dst} & gone),
    )
