"""The format of a file to write: what an option names, or what the suffix of its name implies."""

import argparse
from collections.abc import Mapping
from pathlib import Path

from ...topo.errors import InputError
from ...topo.pictures.convert import PICTURE_SUFFIXES, require_converter

# Suffixes of formats that some program would fail to open if another format were written. Other
# suffixes, such as .txt, say nothing.
_SPEAKING = frozenset(
    (
        *PICTURE_SUFFIXES,
        *(".bmp", ".eps", ".gif", ".jpeg", ".jpg", ".ps", ".tif", ".tiff", ".webp", ".dot", ".gv"),
        *(".doc", ".docx", ".odp", ".ods", ".odt", ".ppt", ".pptx", ".tex", ".xls", ".xlsx"),
        *(".csv", ".htm", ".html", ".json", ".md", ".tsv", ".xml", ".yaml", ".yml"),
    )
)


def choose_format(
    args: argparse.Namespace, formats: Mapping[str, str], default: str, given: str | None = None
) -> str:
    """Return the format of the file of -o: `given`, else what its suffix implies, else `default`.

    `given` is the value of another option for it, None if there is none; `formats` maps suffixes
    (".json") to formats. `args.output` is the value of -o. A suffix that names no format, such as
    .txt, implies none. Raise InputError for a suffix of a format that the command cannot write, and
    for PNG and PDF if what converts to them is missing.
    """
    form = given
    if form is None and args.output is not None:
        suffix = Path(args.output).suffix.lower()
        form = formats.get(suffix)
        if form is None and suffix in _SPEAKING:
            raise InputError(_explain(args, suffix, formats))
    require_converter(form or default)
    return form or default


def check_pictures(args: argparse.Namespace, *options: str) -> None:
    """Raise InputError if the file of an option cannot be written as a picture.

    So it is if its suffix names a format that is no picture of ours, such as .json or .jpg, and if
    it is .png or .pdf and vl-convert is not installed. Any other suffix passes, such as .txt: such
    files get SVG. `options` are attributes of `args`, such as plot; one that is None is skipped.
    """
    for option in options:
        check_suffix(args, option, *PICTURE_SUFFIXES)
        require_converter(Path(getattr(args, option) or "").suffix.lower().removeprefix("."))


def check_suffix(args: argparse.Namespace, option: str, *suffixes: str) -> None:
    """Raise InputError if the suffix of an option's file names a format that it does not write.

    `option` is an attribute of `args`, such as trace, whose files end in `suffixes`.
    """
    suffix = Path(getattr(args, option) or "").suffix.lower()
    if suffix in _SPEAKING - {*suffixes}:
        raise InputError(
            f"{getattr(args, option)}: --{option} writes no {suffix} file; expected a name that "
            f"ends in {_list(suffixes)}"
        )


def _explain(args: argparse.Namespace, suffix: str, formats: Mapping[str, str]) -> str:
    others = ""
    if suffix in PICTURE_SUFFIXES and hasattr(args, "plot"):
        others = "; --plot writes pictures"
    elif suffix in PICTURE_SUFFIXES and hasattr(args, "pictures"):
        others = "; --pictures writes the pictures of the page"
    elif suffix == ".csv" and hasattr(args, "csv"):
        others = "; --csv writes rows"
    return (
        f"{args.output}: -o writes no {suffix} file; expected a name that ends in "
        f"{_list(tuple(formats))}{', or --format' if hasattr(args, 'format') else ''}{others}"
    )


def _list(suffixes: tuple[str, ...]) -> str:
    return " or ".join([", ".join(suffixes[:-1]), suffixes[-1]] if suffixes[1:] else suffixes)
