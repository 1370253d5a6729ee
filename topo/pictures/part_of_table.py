"""What extras add below topo-probe's tables."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TablePart:
    """Lines below a heading; without one they say why there is nothing else."""

    heading: str | None
    lines: list[str]
