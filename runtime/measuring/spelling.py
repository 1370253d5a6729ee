"""Normalize names of element types, reductions and codecs, as torch and nccl-tests write them.

Does not import torch.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...topo.errors import InputError, suggest

DTYPE_NAMES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")
OP_NAMES = ("sum", "avg", "prod", "max", "min")
CODEC_NAMES = ("fp16", "bf16", "fp8", "fp8-e5m2", "int8")
_OTHER_DTYPES = {
    "float": "float32",
    "fp32": "float32",
    "double": "float64",
    "fp64": "float64",
    "half": "float16",
    "fp16": "float16",
    "bf16": "bfloat16",
    "char": "int8",
    "byte": "uint8",
    "int": "int32",
    "long": "int64",
}
_OTHER_OPS = {"mean": "avg", "average": "avg", "add": "sum", "product": "prod", "mul": "prod"}
_OTHER_CODECS = {
    "half": "fp16",
    "float16": "fp16",
    "bfloat16": "bf16",
    "fp8-e4m3": "fp8",
    "float8-e4m3fn": "fp8",
    "float8-e5m2": "fp8-e5m2",
}


def spell_dtype(text: str) -> str:
    """Return our name of an element type: float32 for float, bfloat16 for torch.bf16.

    Raise InputError if it is none.
    """
    return _spell(
        "dtype",
        text.lower().removeprefix("torch.").removeprefix("nccl"),
        text,
        DTYPE_NAMES,
        _OTHER_DTYPES,
    )


def spell_op(text: str) -> str:
    """Return our name of a reduction, such as avg for mean; raise InputError if it is none."""
    return _spell("op", text.lower(), text, OP_NAMES, _OTHER_OPS)


def spell_codec(text: str) -> str:
    """Return our name of a codec, such as fp16 for half; raise InputError if it is none."""
    return _spell("compress", text.lower().replace("_", "-"), text, CODEC_NAMES, _OTHER_CODECS)


def _spell(
    parameter: str, plain: str, text: str, names: Iterable[str], others: dict[str, str]
) -> str:
    if plain in names:
        return plain
    if plain not in others:
        near = suggest(plain, [*names, *others])
        raise InputError(
            f"{parameter} {text}: is unknown{near}; expected one of {', '.join(names)}",
            parameter=parameter,
        )
    return others[plain]
