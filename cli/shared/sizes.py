"""Sizes as the commands read and show them; see synth/sizes.py."""

from ...synth.sizes import parse_size, show_size

__all__ = ["parse_size", "show_size"]
