"""Orders as launchers take them: read back as the launchers do, each is the placement that was
found.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from launch import run_ranks
from numpy.typing import NDArray
from ranks import place as bodies

from topoplan.cli.extras.place import main
from topoplan.synth.bounds.certificate import Bound
from topoplan.synth.extras.place.explain import explain_order
from topoplan.synth.extras.place.job import read_job
from topoplan.synth.extras.place.orders import FORMATS, list_hints, write_order
from topoplan.synth.extras.place.placement import Placement
from topoplan.synth.extras.place.placing import place
from topoplan.synth.ir.collective import collective_on
from topoplan.synth.numeric.effort import Effort
from topoplan.topo.errors import InfeasibleError
from topoplan.topo.extras.clusters import read_box
from topoplan.topo.formats.detect import read_topology_text
from topoplan.topo.graph import Topology
from topoplan.topo.loader.resolve import resolve
from topoplan.topo.presets import preset

CLUSTER = read_topology_text(
    "host rack spine\n" + "".join(f"node{i} r{i % 2} s\n" for i in range(4)),
    "hosts",
    read_box("dgx-a100", resolve),
)
Where = tuple[str, int]


def placement_of(
    order: Sequence[int], job: str | None = None, traffic: str | None = None, target: str = "ring"
) -> Placement:
    """A placement with this order, whatever it is worth."""
    gpus = tuple(CLUSTER.ranks[gpu] for gpu in order)
    return replace(
        FOUND, order=tuple(order), gpus=gpus, job=read_job(job, traffic, 32), target=target
    )


MESH = "dp=4,tp=8", "dp=allreduce:1G,tp=allreduce:64M"
FOUND = place(CLUSTER)
TOGETHER = [8 * host + gpu for host in (2, 0, 3, 1) for gpu in (0, 1, 3, 2, 6, 7, 5, 4)]
INTERLEAVED = [8 * host + gpu for gpu in range(8) for host in (3, 1, 0, 2)]
PARTLY = [*range(8, 16), *range(4), *range(16, 24)]


def seats_of(order: Sequence[int]) -> list[Where]:
    return [(f"node{gpu // 8}", gpu % 8) for gpu in order]


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def visible(text: str) -> dict[str, list[int]]:
    """The GPUs that comments give a host's ranks; all in turn where they give none."""
    found = re.findall(
        r"^# (\S+): CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=([0-9,]+),",
        text,
        re.MULTILINE,
    )
    return {f"node{i}": list(range(8)) for i in range(4)} | {
        host: [int(x) for x in gpus.split(",")] for host, gpus in found
    }


def count_up(hosts: Sequence[str], text: str) -> list[Where]:
    """Where ranks on these hosts are, each host's in turn on its visible GPUs."""
    gpus = {host: iter(numbers) for host, numbers in visible(text).items()}
    return [(host, next(gpus[host])) for host in hosts]


def read_hostfile(text: str) -> list[Where]:
    rows = [re.fullmatch(r"(\S+) slots=(\d+)", line) for line in lines_of(text)]
    return count_up([row[1] for row in rows if row for _ in range(int(row[2]))], text)


def read_rankfile(text: str) -> list[Where]:
    rows = [re.fullmatch(r"rank (\d+)=(\S+) slot=(\d+)", line) for line in lines_of(text)]
    assert [int(row[1]) for row in rows if row] == list(range(len(rows)))
    assert len({(row[2], row[3]) for row in rows if row}) == len(rows)  # no core twice
    return count_up([row[2] for row in rows if row], text)


def read_torchrun(text: str) -> list[Where]:
    """Ranks by --node-rank and then by local rank, as torchrun counts; hosts stand in the comments
    above.
    """
    hosts = re.findall(r"^# on (\S+), ranks", text, re.MULTILINE)
    found: dict[int, list[Where]] = {}
    for host, line in zip(hosts, lines_of(text), strict=True):
        words = dict(word.partition("=")[::2] for word in shlex.split(line))
        gpus = [int(x) for x in words["CUDA_VISIBLE_DEVICES"].split(",")]
        assert int(words["--nproc-per-node"]) == len(gpus) and int(words["--nnodes"]) == len(hosts)
        found[int(words["--node-rank"])] = [(host, gpu) for gpu in gpus]
        assert words["--master-addr"] == hosts[0]
    return [seat for _, seats in sorted(found.items()) for seat in seats]


def read_json(text: str) -> list[Where]:
    return [
        (row["host"], row["gpu"])
        for row in sorted(json.loads(text)["places"], key=lambda row: row["rank"])
    ]


READERS = {
    "hostfile": read_hostfile,
    "rankfile": read_rankfile,
    "torchrun": read_torchrun,
    "json": read_json,
}


@pytest.mark.parametrize("form", [*READERS, "slurm"])
@pytest.mark.parametrize(
    "order", [TOGETHER, PARTLY, INTERLEAVED], ids=["together", "partly", "interleaved"]
)
def test_orders_read_back_are_what_was_found(form: str, order: list[int]) -> None:
    placement = placement_of(order)
    if order is INTERLEAVED and form in ("hostfile", "torchrun"):
        with pytest.raises(
            InfeasibleError, match="of node3's ranks 0 and 4 others' lie between; write "
        ) as caught:
            write_order(form, CLUSTER, placement)
        assert "\n" not in str(caught.value)
        return
    text = write_order(form, CLUSTER, placement, "my file")
    if form == "slurm":
        assert lines_of(text) == text.splitlines() == [host for host, _ in seats_of(order)]
    else:
        assert READERS[form](text) == seats_of(order)


def test_srun_s_line_tells_which_gpus_ranks_see() -> None:
    """The same order of GPUs on every host is in the line; orders that differ are in a file of
    their own.
    """
    count = "srun --nodes=4 --ntasks=32 --distribution=arbitrary"
    start = f"SLURM_HOSTFILE='my file' {count}"
    assert list_hints("slurm", CLUSTER, placement_of(INTERLEAVED), "my file") == [
        f"{start} COMMAND"
    ]
    (line,) = list_hints("slurm", CLUSTER, placement_of(TOGETHER), "my file")
    assert (
        line
        == f"{start} env CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0,1,3,2,6,7,5,4 COMMAND"
    )
    said, line = list_hints(
        "slurm", CLUSTER, placement_of([*range(24), *range(31, 23, -1)]), "my file"
    )
    assert "gpus.sh" in said and line == f"{start} bash -c '. ./gpus.sh; exec COMMAND'"
    assert list_hints("torchrun", CLUSTER, placement_of(TOGETHER)) == []


def test_torchrun_says_whether_addresses_sort_alike() -> None:
    assert "keep to --node-rank" in write_order("torchrun", CLUSTER, placement_of(TOGETHER))
    assert "--local-addr=HOST" in write_order("torchrun", CLUSTER, placement_of(range(32)))
    alone = write_order("torchrun", preset("dgx1"), place("dgx1", target="stock"))
    assert (
        "CUDA_VISIBLE_DEVICES=0,1,3,2,6,7,5,4 torchrun --nnodes=1 --nproc-per-node=8 --standalone "
        "SCRIPT" in alone
    )


def test_visible_devices_are_a_shell_script() -> None:
    text = write_order("cuda-visible-devices", CLUSTER, placement_of(TOGETHER))
    cases = re.findall(
        r"^(\S+) \| \1\.\*\) export CUDA_VISIBLE_DEVICES=([0-9,]+) ;; # ranks (\d+)-(\d+)$",
        text,
        re.MULTILINE,
    )
    assert [(host, gpus) for host, gpus, _, _ in cases] == [
        (f"node{h}", "0,1,3,2,6,7,5,4") for h in (2, 0, 3, 1)
    ]
    assert [(int(first), int(last)) for _, _, first, last in cases] == [
        (0, 7),
        (8, 15),
        (16, 23),
        (24, 31),
    ]
    alone = write_order("cuda-visible-devices", preset("dgx1"), place("dgx1", target="stock"))
    assert lines_of(alone)[-1] == "export CUDA_VISIBLE_DEVICES=0,1,3,2,6,7,5,4"
    made_up = write_order("cuda-visible-devices", preset("dgx-a100:2"), place("dgx-a100:2"))
    assert "box1 | box1.*" in made_up and "replace box0" in made_up


def run_snippet(text: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """The tensor and the names of the snippet, without starting anything."""
    lines = {
        line.partition(" = ")[0]: line.partition(" = ")[2]
        for line in text.splitlines()
        if " = " in line
    }
    names = re.search(r"mesh_dim_names=(\(.*\))\)", lines["mesh"])
    assert names is not None
    return np.array(json.loads(lines["MESH"])), tuple(re.findall(r"'(\w+)'", names[1]))


def test_a_mesh_puts_present_ranks_where_found_ones_are() -> None:
    """The present rank at each place of the mesh has the GPU that the found order gives the place's
    rank.
    """
    order = [8 * host + gpu for host in (0, 2, 1, 3) for gpu in range(8)]
    given = [8 * host + gpu for gpu in range(8) for host in (0, 2, 1, 3)]
    placement = replace(placement_of(order, *MESH), given=tuple(given))
    mesh, names = run_snippet(write_order("device-mesh", CLUSTER, placement))
    assert mesh.shape == (4, 8) and names == ("dp", "tp")
    assert [given[rank] for rank in mesh.reshape(-1).tolist()] == order


def test_a_mesh_that_torch_would_sort_otherwise_is_refused() -> None:
    """Rings may begin anywhere, plans do not depend on the order inside a group; else ranks ascend
    along every dimension.
    """
    turned = [8 * host + gpu for host in (2, 3, 0, 1) for gpu in (7, *range(7))]
    straight = np.arange(32).reshape(4, 8)
    for order, target in ((turned, "ring"), (turned, "plan"), (TOGETHER, "plan")):
        mesh, _ = run_snippet(
            write_order("device-mesh", CLUSTER, placement_of(order, *MESH, target=target))
        )
        assert (mesh == straight).all()
    pipeline = "dp=4,pp=8", "dp=allreduce:1G,pp=sendrecv:64M"
    uneven = [0, 2, 1, *range(3, 32)]
    for job, order, target in (
        (MESH, TOGETHER, "ring"),
        (pipeline, turned, "plan"),
        (MESH, uneven, "plan"),
    ):
        with pytest.raises(InfeasibleError, match="torch sorts the ranks"):
            write_order("device-mesh", CLUSTER, placement_of(order, *job, target=target))


def test_hosts_without_a_plain_name_are_refused() -> None:
    devices = [
        replace(d, extra={**d.extra, "host": "a; rm b"}) if d.id.startswith("node1/") else d
        for d in CLUSTER.devices
    ]
    odd = Topology("odd", tuple(devices), CLUSTER.links)
    for form in ("hostfile", "rankfile", "slurm", "torchrun", "cuda-visible-devices"):
        with pytest.raises(InfeasibleError, match="is no name that a launcher takes"):
            write_order(form, odd, placement_of(range(32)))
    assert read_json(write_order("json", odd, placement_of(range(32))))[8] == ("a; rm b", 0)


def test_the_command_writes_each_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for form in FORMATS:
        assert main(["dgx1", "--format", form, "--for", "plan", "-o", str(tmp_path / form)]) == 0
        assert (tmp_path / form).read_text()
    said = capsys.readouterr()
    assert (
        said.out == ""
        and said.err.startswith("topo-place: SLURM_HOSTFILE=")
        and said.err.count("\n") == 1
    )
    assert main(["dgx1", "--for", "stock", "--format", "device-mesh"]) == 3
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(SystemExit):
        main(["dgx1", "--format", "slurm", "--json"])


def test_a_device_mesh_groups_ranks_by_the_hosts_that_they_are_on() -> None:
    """Ranks 0 and 2 are on one host, 1 and 3 on the other: tensor parallelism stays inside."""
    for rank, (dp, tp, said) in enumerate(run_ranks(bodies.make_device_mesh, 4)):
        assert tp == ([0, 2] if rank in (0, 2) else [1, 3])
        assert dp in ([0, 1], [2, 3], [0, 3], [1, 2]) and rank in dp
        assert said.startswith("the placement is for 3 ranks, and 4 are running")


def test_no_order_is_searched_for_an_explanation_once_the_time_is_over() -> None:
    ring = preset("ring:4")
    collective, bound = collective_on("allreduce", ring), cast("Bound", None)
    assert explain_order(ring, collective, bound, Effort()) is not None
    assert explain_order(ring, collective, bound, Effort(60, began=time.monotonic() - 61)) is None
