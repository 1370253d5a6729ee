"""The format edges: a machine as lines `GPU GPU GB/s` below `# edges`, each for both directions."""

from fractions import Fraction

from topoplan import Device, InputError, Link, Topology
from topoplan.topo.devices import both_directions
from topoplan.topo.formats.format import Format


def _read(text: str, where: str) -> Topology:
    rows = [line.split() for line in text.splitlines()[1:]]
    if not all(len(row) == 3 and row[2].replace(".", "", 1).isdecimal() for row in rows):
        raise InputError(f"{where}: expected lines of GPU, GPU and GB/s below the heading")
    cables = [both_directions(Link(a, b, Fraction(rate))) for a, b, rate in rows]
    gpus = dict.fromkeys(gpu for row in rows for gpu in row[:2])
    return Topology(where, tuple(map(Device, gpus)), sum(cables, ()))


FORMAT = Format("edges", lambda text: text.startswith("# edges\n"), _read)
