"""Have MSCCL++'s own loader read execution plans of topoplan, compiled without a GPU.

    python -m benchmarks mscclpp_loader CHECKOUT    a checkout of microsoft/mscclpp
    --cuda DIR                                      headers of CUDA (/usr/local/cuda/include)

Compiles `src/core/executor/execution_plan.cc` of the checkout with g++ and nlohmann's json.hpp
(Debian: nlohmann-json3-dev), and loads the plans of all preset machines with up to 16 GPUs on every
rank: channels must pair up, and no block may exceed the executor's arrays. Exit code 1 if a plan is
refused.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from harness import Table, make_parser

import topoplan
from topoplan.synth.extras.mscclpp.limits import MAX_CHANNELS, MAX_OPERATIONS
from topoplan.synth.extras.mscclpp.write import COLLECTIVES, write_mscclpp

MACHINES = ("dgx1", "dgx2", "dgx-a100", "pcie-2socket", "mi250", "mi300x", "z52", "dgx-a100:2")
# Thirds, and 48 parts of 16 bytes on 16 ranks.
SIZES_bytes = (3 << 18, 1 << 28)
_COMPILE_TIMEOUT_S = 900.0  # a busy machine
COLUMNS = [
    ("machine", "machine", "<14"),
    ("collective", "collective", "<15"),
    ("size_bytes", "bytes", ">10"),
    ("blocks", "blocks", ">6"),
    ("most", "operations", ">10"),
    ("channels", "channels", ">8"),
    ("fits", "loaded", "<6"),
]
# Prints the blocks of a rank, the operations and channels of its busiest block, and the channels
# that have no counterpart.
DRIVER = r"""
#include "execution_plan.hpp"
#include <iostream>
using namespace mscclpp;
int main(int, char** argv) {
  for (int rank = 0; rank < atoi(argv[2]); rank++) {
    ExecutionPlan::Impl plan(argv[1], rank);
    plan.loadExecutionPlan(strtoull(argv[3], 0, 10), strtoull(argv[4], 0, 10), 0, 0);
    size_t most = 0, channels = 0;
    for (int b = 0; b < plan.getThreadblockCount(); b++) {
      most = std::max(most, plan.getOperations(b).size());
      channels = std::max({channels, plan.threadblockMemoryChannels[b].size(),
                           plan.threadblockPortChannels[b].size(),
                           plan.threadblockMemoryChannelBuffers[b].size(),
                           plan.threadblockPortChannelBuffers[b].size()});
    }
    size_t unpaired = 0;
    for (auto type : {ChannelType::MEMORY, ChannelType::PORT})
      unpaired += plan.getUnpairedChannelInfos(atoi(argv[2]), type).size();
    std::cout << plan.getThreadblockCount() << " " << most << " " << channels << " " << unpaired
              << "\n";
  }
}
"""
# The checkout's errors.cc needs CUDA's libraries.
ERRORS = r"""
#include <mscclpp/errors.hpp>
namespace mscclpp {
BaseError::BaseError(const std::string& text, int code)
    : std::runtime_error(text), message_(text), errorCode_(code) {}
const char* BaseError::what() const noexcept { return message_.c_str(); }
Error::Error(const std::string& text, ErrorCode code) : BaseError(text, (int)code) {}
}
"""


def main() -> int:
    """Compile the loader, load the plans, print the table and return the exit code."""
    parser = make_parser(__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--cuda", type=Path, default=Path("/usr/local/cuda/include"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        loader = compile_loader(args.checkout, args.cuda, Path(folder))
        table = Table(COLUMNS, as_json=args.json)
        for machine in MACHINES:
            for name in COLLECTIVES:
                for size in SIZES_bytes:
                    table.add(load(loader, machine, name, size))
    table.end()
    return int(any(row["fits"] == "no" for row in table.rows))


def compile_loader(checkout: Path, cuda: Path, folder: Path) -> Path:
    """Return the compiled driver, which stands in `folder`."""
    (folder / "driver.cc").write_text(DRIVER)
    (folder / "errors.cc").write_text(ERRORS)
    (folder / "mscclpp").mkdir()
    template = (checkout / "include" / "mscclpp" / "version.hpp.in").read_text()
    version = "".join(part if i % 2 == 0 else "0" for i, part in enumerate(template.split("@")))
    (folder / "mscclpp" / "version.hpp").write_text(version)
    include = [checkout / "include", checkout / "src" / "core" / "include", folder, cuda]
    source = checkout / "src" / "core" / "executor" / "execution_plan.cc"
    command = ["g++", "-std=c++17", "-O0", "-fno-access-control", "-DMSCCLPP_USE_CUDA"]
    command += [f"-I{path}" for path in include]
    command += [str(folder / "driver.cc"), str(folder / "errors.cc"), str(source)]
    subprocess.run([*command, "-o", str(folder / "loader")], check=True, timeout=_COMPILE_TIMEOUT_S)
    return folder / "loader"


def load(loader: Path, machine: str, name: str, size_bytes: int) -> dict[str, object]:
    """Return a row of the table: whether all ranks load the plan."""
    plan = topoplan.synthesize(name, machine, "packing")
    entry, n = plan.entry_for(size_bytes), len(plan.topology.ranks)
    made = write_mscclpp(
        entry.schedule, plan.topology, size_bytes, entry.min_bytes, entry.max_bytes
    )
    path = loader.parent / "plan.json"
    path.write_text(made.text)
    sizes = (
        size_bytes // n if name == "allgather" else size_bytes,
        size_bytes // n if name == "reduce-scatter" else size_bytes,
    )
    ran = subprocess.run(
        [str(loader), str(path), str(n), *map(str, sizes)], capture_output=True, text=True
    )
    ranks = [tuple(map(int, line.split())) for line in ran.stdout.splitlines()]
    blocks, most, channels, unpaired = map(max, zip(*ranks, strict=True)) if ranks else (0,) * 4
    fits = not ran.returncode and len(ranks) == n and not unpaired
    fits &= most <= MAX_OPERATIONS and channels <= MAX_CHANNELS
    if ran.returncode:
        print(f"{machine} {name}: {ran.stderr.strip()}", file=sys.stderr)
    return {
        "machine": machine,
        "collective": name,
        "size_bytes": size_bytes,
        "blocks": blocks,
        "most": most,
        "channels": channels,
        "fits": "yes" if fits else "no",
    }


if __name__ == "__main__":
    sys.exit(main())
