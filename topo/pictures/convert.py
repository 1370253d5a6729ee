"""Convert SVG to PNG and PDF with vl-convert, which brings its own fonts.

`pip install 'topoplan[pictures]'` installs it.
"""

import math
import re
from importlib.util import find_spec
from pathlib import Path

from ..errors import InputError

# The formats that SVG is converted to, and the suffixes of all pictures.
CONVERTED = ("png", "pdf")
PICTURE_SUFFIXES = (".svg", ".png", ".pdf")
# Pixels of a PNG per pixel of the SVG, so that text is sharp on slides; most pixels of a PNG, since
# a machine of thousands of GPUs would take gigabytes.
_SCALE, _MAX_PIXELS = 2.0, 40_000_000
# Styles for dark pages; they contain one level of braces.
_DARK = re.compile(r"@media[^{]*\{(?:[^{}]*\{[^{}]*\})*\s*\}")
_VARIABLE = re.compile(r"(--[a-z]+):([^;}]+);?")
_SIZE = re.compile(r'<svg[^>]*\bwidth="([0-9.]+)" height="([0-9.]+)"')


def require_converter(form: str) -> None:
    """Raise InputError if files of the format `form` cannot be written since vl-convert is missing.

    Only those of CONVERTED need it.
    """
    if form in CONVERTED and find_spec("vl_convert") is None:
        raise InputError(
            f"{form.upper()} needs vl-convert-python, which is not installed; pip install "
            "'topoplan[pictures]', or write SVG"
        )


def convert_svg(svg: str, form: str) -> bytes:
    """Return an SVG document as PNG, at twice its size, or as PDF.

    `form` is one of CONVERTED. Colours are those of light pages. Raise InputError if vl-convert is
    missing or cannot convert the document.
    """
    require_converter(form)
    import vl_convert

    fixed = _resolve_colours(svg)
    try:
        if form == "pdf":
            return bytes(vl_convert.svg_to_pdf(fixed))
        return bytes(vl_convert.svg_to_png(fixed, scale=_choose_scale(fixed)))
    except (RuntimeError, ValueError) as error:
        # Lines after the first are a stack trace.
        reason = str(error).partition("\n")[0]
        raise InputError(f"the picture cannot be written as {form.upper()}: {reason}") from None


def convert_for(path: str, text: str) -> str | bytes:
    """Return an SVG document as the PNG or PDF that the suffix of the file's name asks for.

    With another suffix, or if `text` is no SVG, it is returned unchanged. Raise InputError as
    `convert_svg` does.
    """
    form = Path(path).suffix.lower().removeprefix(".")
    return convert_svg(text, form) if form in CONVERTED and text.startswith("<svg") else text


def _resolve_colours(svg: str) -> str:
    """Replace CSS variables by their values for light pages.

    The renderer has no variables, and ignores a rule that defines some, fonts included.
    """
    light = _DARK.sub("", svg)
    values = dict(_VARIABLE.findall(light))
    plain = _VARIABLE.sub("", light)
    return re.sub(r"var\((--[a-z]+)\)", lambda match: values.get(match[1], match[0]), plain)


def _choose_scale(svg: str) -> float:
    size = _SIZE.search(svg)
    pixels = float(size[1]) * float(size[2]) if size else 1.0
    return min(_SCALE, math.sqrt(_MAX_PIXELS / max(pixels, 1.0)))
