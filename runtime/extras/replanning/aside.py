"""Make a plan in a thread, while calls go on."""

import threading
from collections.abc import Callable
from concurrent.futures import Future

from ....synth.plan import Plan
from ....topo.errors import TopoplanError


def plan_aside(make: Callable[[], Plan], made: "Future[Plan | str]") -> None:
    """Call `make` in a new thread; set the result of `made` to its plan, or why there is none."""

    def run() -> None:
        try:
            made.set_result(make())
        except TopoplanError as error:
            made.set_result(str(error))
        except Exception as error:  # a defect: all ranks wait for the plan, or still have one
            made.set_result(f"{error!r}")

    threading.Thread(target=run, name="topoplan-replan", daemon=True).start()
