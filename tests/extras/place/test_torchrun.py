"""torchrun, started on each host as topo-place's lines say: hosts are network namespaces, and ranks
are where they were promised.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import patience
import pytest
from emulated import EmulatedRank
from ranks import place_reported

from topoplan.cli.extras.place import main
from topoplan.runtime.extras.emulate import Network, emulate
from topoplan.runtime.extras.emulate.network import IDENTITY
from topoplan.topo.graph import Device, Link, Topology, both_directions
from topoplan.topo.presets import preset

pytestmark = pytest.mark.network("namespaces")

_BOX = Topology(
    "box",
    tuple(Device(f"gpu{i}") for i in range(3)),
    tuple(
        link
        for i in range(3)
        for j in range(i)
        for link in both_directions(Link(f"gpu{i}", f"gpu{j}", Fraction(50)))
    ),
)
_RECORD = """#!/bin/sh
printf '%s\\0' "$@"
printf -- '--\\0'
exec env -0
"""
_UNSORTED = ("10.99.0.3", "10.99.0.1", "10.99.0.2")


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    """Three hosts at a switch: 10.99.0.1, .2 and .3."""
    with emulate(preset("switch:3"), Fraction(10**9)) as built:
        yield built


def place_on(
    hosts: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[str, list[object]]:
    """The lines for torchrun and the places that are promised: hosts of 2, 1 and 2 ranks, whose
    order is found.
    """
    where, box = folder / "hosts.txt", folder / "box.json"
    where.write_text(
        f"host rack spine\n{hosts[0]} r0 s\n{hosts[1]} r1 s\n{hosts[2]} r0 s\n", encoding="utf-8"
    )
    box.write_text(_BOX.dumps(), encoding="utf-8")
    # three GPUs a host, of which some stay free; the present order deals ranks to hosts in turn
    words = [
        str(where),
        "--box",
        str(box),
        "--network",
        "10",
        "--reserve",
        "0,5,6,7",
        "--order",
        "2,3,8,1,4",
    ]
    assert main([*words, "--format", "torchrun"]) == 0
    lines = capsys.readouterr().out
    assert main([*words, "--format", "json"]) == 0
    places = json.loads(capsys.readouterr().out)["places"]
    return lines, [[row[name] for name in ("rank", "host", "local_rank", "gpu")] for row in places]


def start_lines(lines: dict[str, str], network: Network, folder: Path) -> list[list[object]]:
    """What ranks report when each host's line is started in its namespace, all at once.

    The shell of each host runs the line; the torchrun that it finds says which words and variables
    it was given, and the real one begins with these, in a process whose imports are done.
    """
    torchrun = folder / "torchrun"
    torchrun.write_text(_RECORD, encoding="utf-8")
    torchrun.chmod(0o755)
    number_of = {network.blueprint.identity(rank): rank for rank in range(3)}
    started: list[EmulatedRank] = []
    try:
        for host, line in lines.items():
            shell = ["sh", "-c", f"PATH={folder}:$PATH; {line}"]
            command = [*network.enter_rank(number_of[host]), *shell]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split(
                "\0"
            )[:-1]
            at = said.index("--")
            env = dict(entry.split("=", 1) for entry in said[at + 1 :])
            output = folder / f"{host}.out"
            started.append(
                EmulatedRank(
                    network,
                    number_of[host],
                    folder,
                    "torch.distributed.run",
                    said[:at],
                    output,
                    {**env, "OMP_NUM_THREADS": "1"},
                )
            )
        codes = patience.wait_for_ends(started)
    finally:
        for launcher in started:
            launcher.kill()
            launcher.wait()
    assert codes == [0] * len(lines), "\n".join(
        path.read_text() for path in sorted(folder.glob("*.out"))
    )
    told = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("[0-9].json")]
    assert all(row["world"] == len(told) and row["counted"] == "PCI_BUS_ID" for row in told)
    return sorted([row[name] for name in ("rank", "host", "local_rank", "gpu")] for row in told)


def by_host(text: str, folder: Path) -> dict[str, str]:
    """The line of each host, with the script in its place."""
    script = f"{place_reported.__file__} {folder} {IDENTITY}"
    return {
        host: re.sub(r"\bSCRIPT$", script, line)
        for host, line in re.findall(r"^# on (\S+), ranks .*:\n(.*)$", text, re.MULTILINE)
    }


def test_ranks_are_where_the_lines_promise(
    network: Network, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Addresses sort otherwise than hosts follow each other, hosts have two ranks or one, and some
    GPUs stay free.
    """
    text, promised = place_on(_UNSORTED, tmp_path, capsys)
    assert "keep to --node-rank" in text
    assert start_lines(by_host(text, tmp_path), network, tmp_path) == promised


def test_a_rendezvous_by_c10d_keeps_an_order_that_sorts(
    network: Network, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The words that the comment has stand in for those of the static rendezvous."""
    text, promised = place_on(tuple(sorted(_UNSORTED)), tmp_path, capsys)
    found = re.search(
        r"gives the same: (.* --local-addr=HOST), with (is_host=0) on all but (\S+)$",
        text,
        re.MULTILINE,
    )
    assert found is not None, text
    lines = {
        host: re.sub(r"--node-rank=.* --master-port=\d+", found[1].replace("HOST", host), line)
        for host, line in by_host(text, tmp_path).items()
    }
    for host in lines.keys() - {found[3]}:
        lines[host] = lines[host].replace("is_host=1", found[2])
    assert start_lines(lines, network, tmp_path) == promised
