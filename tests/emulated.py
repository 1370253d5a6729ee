"""Commands on the ranks of an emulated machine; a part of the extra `emulate`, which tests of the
core import where they need it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import patience
from launch import Ended, fork_command, patient_ranks, read_printed

from topoplan.runtime.extras.emulate import Network
from topoplan.runtime.extras.emulate.ranks import list_rank_variables, write_topology
from topoplan.runtime.ranks.launch import ForkedProcess


def run_emulated(
    network: Network, folder: Path, module: str, *args: str, quiet_s: float = 200
) -> list[Ended]:
    """Run a command's module once a rank of an emulated machine; `folder` is what the ranks share.
    Both kinds of output are in `stdout`.
    """
    write_topology(network, folder)
    outputs = [folder / f"{rank}.out" for rank in range(len(network.blueprint.home))]
    ranks: list[EmulatedRank] = []
    try:
        for rank, output in enumerate(outputs):
            ranks.append(EmulatedRank(network, rank, folder, module, args, output))
        codes = patience.wait_for_ends(ranks, f"the end of all ranks of {module}", quiet_s)
    finally:
        for started in ranks:
            started.kill()
            started.wait()
    return [
        Ended([module, *args], code, read_printed(output), "")
        for code, output in zip(codes, outputs, strict=True)
    ]


class EmulatedRank(ForkedProcess):
    """A command's module as one rank of an emulated machine, forked; with what tests need of
    subprocess.Popen.

    It differs from `topoplan.runtime.extras.emulate.start_rank` in that its imports are done; `env`
    stands in for the variables that say who the rank is.
    """

    def __init__(
        self,
        network: Network,
        rank: int,
        folder: Path,
        module: str,
        arguments: Sequence[str],
        output: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        own = list_rank_variables(network, rank, folder) if env is None else env
        told = {**os.environ, **patient_ranks(), **own}
        namespace = network.namespace_of(network.blueprint.home[rank])
        self.output = output  # for `patience`
        super().__init__(
            fork_command(module, list(arguments), told, Path.cwd(), output, output, namespace)
        )
