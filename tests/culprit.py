"""Whether an error names the rank at fault, where the extra that finds it is in this copy."""

from __future__ import annotations

from topoplan.extras import BY_NAME


def is_named(rank: int, error: object) -> bool:
    """Return whether an error says that a rank does not answer.

    Without the extra any error will do: it says what failed on the rank that has it.
    """
    return (f"rank {rank} does not answer" if BY_NAME["culprits"].is_here else "") in str(error)
