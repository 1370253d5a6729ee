"""Skeletons, files in NCCL's XML with PCI slots but no GPUs, as an entry of extras.py at the root.

A skeleton becomes a topology only together with its own machine, whose GPUs are put into the slots.
"""

from ...formats.format import Skeletons
from .skeleton import fill_skeleton, is_skeleton

SKELETONS = Skeletons(is_skeleton, fill_skeleton)
