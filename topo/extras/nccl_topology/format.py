"""Skeletons in NCCL's XML, as extras.py lists them."""

from ...formats.format import Skeletons
from .skeleton import fill_skeleton, is_skeleton

SKELETONS = Skeletons(is_skeleton, fill_skeleton)
