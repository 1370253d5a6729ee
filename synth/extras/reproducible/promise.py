"""The option --reproducible of topo-synth: all schedules of a plan add in one bracketing.

A bracketing is the order of additions over ranks; a promise is what all schedules of a plan keep.
"""

from ...request import Promise, Strategy
from ...strategies.built_in import MAIN_WORK_S
from .build import build_reproducible, choose_bracketing
from .fitting import NAME

REPRODUCIBLE = Promise(Strategy(NAME, build_reproducible, work_s=MAIN_WORK_S), choose_bracketing)
