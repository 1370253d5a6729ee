"""Write the CSV for NVIDIA's example tuner plugin (NCCL_TUNER_CONFIG_FILE).

It uses measured times only. Each measurement is topo-run's JSON for the stock collective with one
algorithm, protocol and number of channels forced. The CSV names the fastest one for each range from
one measured size to the next; the first and the last range extend to all other sizes. It must name
the number of channels: for -1, or a call that no line covers, the plugin runs one channel.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ....topo.errors import InfeasibleError, InputError
from ....topo.exact import load_json
from ....topo.files import read_file
from ....topo.graph import Topology
from ....topo.version import VERSION
from ...ir.collective import Collective
from ..stock.constants import MAX_COMM_CHANNELS
from .graph_check import make_plain

# The header in the plugin's documentation.
COLUMNS = (
    "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,"
    "regBuff"
)
# The names that the plugin reads.
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
# Likewise.
PROTOCOLS = ("ll", "ll128", "simple")
_COLLECTIVES = {
    "allreduce": "allreduce",
    "allgather": "allgather",
    "reduce-scatter": "reducescatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
# The plugin's largest size_t.
_NO_END = 2**64 - 1
# Far more than topo-run prints.
_MAX_FILE_BYTES = 16 * 2**20


@dataclass(frozen=True)
class ForcedTimes:
    """Measured times of a stock collective with NCCL's algorithm, protocol and channels forced.

    `time_us` are the microseconds by the bytes of the buffer; `channels` is the number of channels.
    """

    algorithm: str
    protocol: str
    channels: int
    time_us: dict[int, float]


def read_measured(argument: str, collective: Collective) -> ForcedTimes:
    """Read the measurement that the text ALGORITHM/PROTOCOL/CHANNELS=FILE names.

    Raise InputError if the file is not topo-run's JSON of this collective over NCCL.
    """
    forced, equals, path = argument.partition("=")
    parts = forced.lower().split("/")
    expected = "expected ALGORITHM/PROTOCOL/CHANNELS=FILE, such as tree/simple/16=tree.json"
    if not equals or len(parts) != 3:
        raise InputError(f"{argument[:80]}: {expected}", parameter="measured")
    if parts[0] not in ALGORITHMS or parts[1] not in PROTOCOLS:
        known = f"algorithms are {', '.join(ALGORITHMS)}, protocols {', '.join(PROTOCOLS)}"
        raise InputError(f"{argument[:80]}: {expected}; {known}", parameter="measured")
    channels = int(parts[2]) if re.fullmatch(r"[0-9]{1,3}", parts[2]) else 0
    if not 1 <= channels <= MAX_COMM_CHANNELS:
        raise InputError(
            f"{argument[:80]}: {parts[2][:20]!r} channels; expected 1 to {MAX_COMM_CHANNELS}",
            parameter="measured",
        )
    return ForcedTimes(parts[0], parts[1], channels, _read_times(path, collective))


def _read_times(path: str, collective: Collective) -> dict[int, float]:
    try:
        raw = read_file(path, _MAX_FILE_BYTES + 1) if path else b""
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read: {error.strerror or error}", parameter="measured"
        ) from None
    if len(raw) > _MAX_FILE_BYTES:
        raise InputError(
            f"{path}: larger than {_MAX_FILE_BYTES >> 20} MiB; no output of topo-run is",
            parameter="measured",
        )
    try:
        body = load_json(raw, exact=False)
    except ValueError:
        body = None
    if not isinstance(body, dict) or not isinstance(body.get("rows"), list):
        raise InputError(
            f"{path}: not the JSON that topo-run prints; expected an object with rows",
            parameter="measured",
        )
    for key, wanted in (
        ("collective", collective.name),
        ("ranks", collective.ranks),
        ("backend", "nccl"),
    ):
        if body.get(key) != wanted:
            raise InputError(
                f"{path}: its {key} is {str(body.get(key))[:40]}; expected {wanted}",
                parameter="measured",
            )
    times = {}
    for row in body["rows"]:
        size, time_us = _get_number(row, "size_bytes"), _get_number(row, "stock_us")
        if size is not None and time_us:
            times[int(size)] = time_us
    if not times:
        raise InputError(
            f"{path}: no row has a time of the stock collective (stock_us); time that too",
            parameter="measured",
        )
    return times


def _get_number(row: Any, key: str) -> float | None:
    """Return a number of a row; None if it is missing, negative or not finite."""
    value = row.get(key) if isinstance(row, dict) else None
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value < 2**63 else None


def write_nccl_tuner(collective: Collective, topology: Topology, arguments: Sequence[str]) -> str:
    """Return the CSV of a collective from measurements, each ALGORITHM/PROTOCOL/CHANNELS=FILE.

    `topology` is the machine that they were made on; the CSV names its number of hosts. Raise
    InputError if `arguments` is empty, InfeasibleError for a collective that the plugin does not
    know.
    """
    name = _COLLECTIVES.get(collective.name)
    if name is None:
        raise InfeasibleError(
            f"NCCL's tuner has nothing for {collective.name}; it has {', '.join(_COLLECTIVES)}"
        )
    if not arguments:
        raise InputError(
            "nccl-tuner is written from measured times alone: with NCCL_ALGO=Tree "
            "NCCL_PROTO=Simple NCCL_MAX_NCHANNELS=16 in the environment, save the JSON of "
            "topo-run's stock times in tree.json, the same with Ring in ring.json, and give "
            "tree/simple/16=tree.json and ring/simple/16=ring.json",
            parameter="measured",
        )
    measured = [read_measured(argument, collective) for argument in arguments]
    sizes = sorted(set.intersection(*(set(each.time_us) for each in measured)))
    if not sizes:
        raise InputError(
            "no size was measured in all of the files; measure the same sizes", parameter="measured"
        )
    fastest = [min(measured, key=lambda each: each.time_us[size]) for size in sizes]
    nodes = len({str(topology.by_id[gpu].extra.get("host", "")) for gpu in topology.ranks})
    lines = [
        f"topoplan {VERSION}: {collective.name} on {topology.name}, fingerprint "
        f"{topology.fingerprint}",
        f"the fastest of {len(measured)} measurements at {len(sizes)} sizes from {sizes[0]} to "
        f"{sizes[-1]} bytes; other sizes have the choice of the next smaller one, or the nearest",
        "collectives without a line here run on one channel while the plugin is loaded",
        COLUMNS,
    ]
    rows, start = [], 0
    for each, after, end in zip(
        fastest, [*fastest[1:], None], [*(size - 1 for size in sizes[1:]), _NO_END], strict=True
    ):
        if each is not after:
            forced = f"{each.algorithm},{each.protocol},{each.channels}"
            rows.append(f"{name},{start},{end},{forced},{nodes},{collective.ranks},-1,-1")
            start = end + 1
    return "\n".join([*(f"# {make_plain(line)}" for line in lines), *rows, ""])
