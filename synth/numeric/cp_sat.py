"""CP-SAT settings for all searches, so that equal models give equal results.

These are one worker, a fixed seed and a limit of deterministic time.
"""

from ortools.sat.python import cp_model

from .effort import Effort  # an allowance of work and time for searches

# Seconds that a unit of CP-SAT's deterministic time takes on an idle core, roughly.
_WORK_S = 3.5
# Seconds of an idle core to build and presolve a constraint, which deterministic time hardly
# includes.
_CONSTRAINT_S = 1e-5
# Least work and time for a model if its allowance is used up.
_MIN_S = 0.01


def solve(
    model: cp_model.CpModel, effort: Effort, search: str, *, varied: bool = False
) -> tuple[cp_model.CpSolver, cp_model.CpSolverStatus]:
    """Solve a model within `effort`; return the solver, which has the values, and its status.

    `search` is the name to record in `effort.cut_short` if the clock stops it. With `varied`,
    alternate between CP-SAT's strategies, for models that each need a different one.
    """
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.interleave_search = varied
    solver.parameters.random_seed = 1
    effort.spend(_CONSTRAINT_S * len(model.proto.constraints))
    units = max(_MIN_S, effort.left_s) / _WORK_S
    solver.parameters.max_deterministic_time = units
    solver.parameters.max_time_in_seconds = max(_MIN_S, effort.clock_s)
    status = solver.solve(model)
    used = float(solver.response_proto.deterministic_time)
    effort.spend(used * _WORK_S)
    # Only the clock ends a search before its work is done.
    if status not in (cp_model.OPTIMAL, cp_model.INFEASIBLE) and used < units * (1 - 1e-6):
        effort.record_cut(search)
    return solver, status
