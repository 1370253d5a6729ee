"""The message for an installation without torch, which planning does not need."""

from ...topo.errors import InputError


def explain_import_error(error: ImportError) -> Exception:
    """Return an InputError with what to install if torch is what is missing, else `error` itself.

    An import that fails inside an installed torch often leaves `error.name` empty.
    """
    if error.name is not None and error.name.partition(".")[0] != "torch":
        return error
    try:
        import torch  # noqa: F401
    except ImportError as reason:
        return InputError(
            f"torch cannot be imported ({reason}); planning works without it, running does not: "
            "pip install 'topoplan[run]' (without a GPU install torch's CPU build first, see "
            "pytorch.org)"
        )
    return error
