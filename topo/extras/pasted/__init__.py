"""Texts that people paste: undo what that did to them, and read what stands around a matrix."""
