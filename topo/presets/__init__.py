"""Known machines and graphs by name."""

from .names import MAX_GPUS, PRESETS, preset

__all__ = ["MAX_GPUS", "PRESETS", "preset"]
