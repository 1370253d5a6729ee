"""Whether output has colours: on a terminal, unless environment variables decide otherwise."""

import os
from typing import Any

# Values with which people turn FORCE_COLOR and CLICOLOR_FORCE off again.
_OFF = ("", "0", "false")


def is_terminal(stream: Any) -> bool:
    """Return whether a stream, which may be None or closed, is a terminal."""
    try:
        return bool(stream is not None and stream.isatty())
    except ValueError:  # closed
        return False


def wants_colour(stream: Any) -> bool:
    """Return whether to print colours to a stream.

    NO_COLOR (no-color.org) turns colours off. Else FORCE_COLOR (force-color.org) and CLICOLOR_FORCE
    turn them on, also in files and pipes. Without either only terminals have colours.
    """
    if os.environ.get("NO_COLOR"):
        return False
    forced = (os.environ.get(name, "") for name in ("FORCE_COLOR", "CLICOLOR_FORCE"))
    return any(value.lower() not in _OFF for value in forced) or is_terminal(stream)
