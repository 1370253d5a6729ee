"""The order of a file's findings: the first is the verdict, which the others do not contradict.

Findings are remarks on a file, which readers and advice make; the beginnings of their names tell
what they are.
"""

from collections.abc import Sequence

from .file_contents import FileFinding

# Beginnings of the names of findings, by what they are. Results that mean nothing come first.
_VOID = (
    *("start-failed", "timed-out", "wrong-results", "single-rank", "separate-jobs"),
    *("other-gpus", "start-unfinished"),
)
# Causes of loss, the most certain first.
_CAUSES = (
    *("fabric-", "simple-order", "p2p-refused", "shared-memory", "network-socket", "no-gdr"),
    "variable-",
)
_LOSSES = ("fall-", "below-channels-", "offer-", "order-", "tuner-", "below-nvls-", "below-bound-")
_OPEN = ("conditional-", "small-sizes-")
_HEALTHY = ("above-bound-", "near-bound-", "nvls-")
_REMARKS = ("undecided-", "rate-withdrawn", "warning-")


def is_healthy(finding: FileFinding) -> bool:
    """Return whether a finding says that nothing is to be done."""
    return finding.name.startswith(_HEALTHY)


def rank_findings(findings: Sequence[FileFinding]) -> list[FileFinding]:
    """Return findings in the order in which they matter, the verdict first; each only once.

    Findings that make results void come first. If a loss was found (less than the machine can do),
    its possible causes come before it. If no loss was found but something is healthy, findings that
    say so come before the causes.
    """
    is_lossy = any(finding.name.startswith(_LOSSES) for finding in findings)
    is_well = not is_lossy and any(map(is_healthy, findings))
    middle = (*_HEALTHY, *_CAUSES) if is_well else (*_CAUSES, *_LOSSES, *_HEALTHY)
    order = (*_VOID, *middle, *_OPEN, *_REMARKS)

    def place(finding: FileFinding) -> int:
        begins = (at for at, name in enumerate(order) if finding.name.startswith(name))
        return next(begins, len(order))

    return sorted(dict.fromkeys(findings), key=place)
