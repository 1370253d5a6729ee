"""The table of symptoms, for people to add to (../README.md says how).

Of symptoms that are equally sure, the first one here is the first answer: causes come above what
follows from them. Patterns are for the lines of all versions: NCCL has renamed functions and files,
and since 2.2x adds the number of an error to its text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import following, inside, machine, meeting, memory, program, rdma, start

if TYPE_CHECKING:
    from ..symptom import Symptom

_ROOMS = (machine, memory, start, meeting, rdma, inside, program, following)
SYMPTOMS: tuple[Symptom, ...] = tuple(symptom for room in _ROOMS for symptom in room.SYMPTOMS)
