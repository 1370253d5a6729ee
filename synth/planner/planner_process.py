"""Synthesize in a process of its own, so that a training script goes on at full speed meanwhile.

Planning is mostly Python: a thread of the script's process would hold the interpreter's lock half
of the time, and with it all ranks, which wait for this one. The process runs this module, with the
request as JSON on standard input and the plan, or an error, as JSON on standard output.
"""

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ...topo import errors
from ...topo.errors import TopoplanError
from ...topo.graph import Topology
from ...topo.loader.resolve import load_for_planning
from ..ir.collective import Collective
from ..plan import Plan

log = logging.getLogger("topoplan")
# Polling interval for a request to stop: no call waits for it.
_STOP_POLL_S = 0.2
# Time for the process beyond the time limit, of which loading the planner is a part: to build the
# plan that was found by then.
PATIENCE_S = 120.0
# The search has at least this time even if loading has taken the rest: it then finds a simple plan.
_LEAST_S = 1.0


@dataclass(frozen=True)
class FoundPlan:
    """A plan that another process made.

    `seconds` is how long its search took; `cut_short` names the searches that the time limit
    stopped.
    """

    plan: Plan
    seconds: float
    cut_short: tuple[str, ...]


def synthesize_in_process(
    collective: Collective,
    topology: Topology,
    time_limit_s: float,
    *,
    reproducible: bool,
    is_stopped: Callable[[], bool],
    helpers: Sequence[int] = (),
) -> FoundPlan | None:
    """Return the plan that a process of its own makes, verified.

    Return None if no process can be started, or it ends without an answer: the caller then plans
    itself. If the collective is not over all GPUs, `helpers` may help. With `reproducible`, an
    element's sum has the same bits wherever it is in a buffer. The process has no strategies that
    this process alone has registered. Its start is part of the time limit. Raises like
    `synthesize`, and TimeLimitError when `is_stopped()` (asked a few times a second) returns True
    or the process does not end.
    """
    request = {
        "collective": [collective.name, collective.ranks, collective.root],
        "members": [] if collective.has_all_gpus else list(collective.members),
        "helpers": list(helpers),
        "topology": topology.to_json(),
        "ends": time.monotonic() + time_limit_s,  # the same clock in all processes of a host
        "reproducible": reproducible,
    }
    # As the module is found here, wherever the checkout or the wheel is.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        process = subprocess.Popen(
            [sys.executable or "", "-m", __name__],  # none in some embedded interpreters
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=environment,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        log.debug("planning in this process: %s", error)
        return None
    answer = _wait(process, json.dumps(request).encode(), time_limit_s + PATIENCE_S, is_stopped)
    if answer is None:
        log.debug("planning in this process: the other ended with %s", process.returncode)
        return None
    if "error" in answer:
        raise getattr(errors, answer["error"])(answer["message"])
    plan = Plan.loads(json.dumps(answer["plan"]), "the plan of the planning process")
    return FoundPlan(plan, answer["seconds"], tuple(answer["cut_short"]))


def _wait(
    process: "subprocess.Popen[bytes]",
    request: bytes | None,
    limit_s: float,
    is_stopped: Callable[[], bool],
) -> dict[str, Any] | None:
    """Return the process's answer; None if it ended without one.

    Raise TimeLimitError if it had to be ended.
    """
    ends = time.monotonic() + limit_s
    with process:
        while True:
            try:
                output, _ = process.communicate(request, timeout=_STOP_POLL_S)
                break
            except subprocess.TimeoutExpired:
                request = None  # it was given
            if is_stopped() or time.monotonic() > ends:
                process.kill()
                why = "was stopped" if is_stopped() else f"did not end within {limit_s:.0f} s"
                raise errors.TimeLimitError(f"the search for a plan {why}")
    with suppress(ValueError):
        answer: dict[str, Any] = json.loads(output)
        return answer
    return None


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request, in the process of its own."""
    from ..numeric.effort import Effort
    from ..request import Request
    from .synthesize import synthesize

    topology, router = load_for_planning(Topology.from_json(request["topology"]))
    name, ranks, root = request["collective"]
    try:
        result = synthesize(
            Request(
                Collective(name, ranks, root, request["members"]),
                topology,
                Effort(max(_LEAST_S, request["ends"] - time.monotonic())),
                router=router,
                reproducible=request["reproducible"],
                helpers=tuple(request["helpers"]),
            )
        )
    except TopoplanError as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {
        "plan": result.plan.to_json(),
        "seconds": result.seconds,
        "cut_short": list(result.cut_short),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_answer(json.load(sys.stdin))))
