"""The option --reproducible of topo-synth: all schedules of a plan add in one bracketing."""

from ...request import Promise, Strategy
from ...strategies.built_in import MAIN_WORK_S
from .build import build_reproducible, choose_bracketing
from .fitting import NAME

REPRODUCIBLE = Promise(Strategy(NAME, build_reproducible, work_s=MAIN_WORK_S), choose_bracketing)
