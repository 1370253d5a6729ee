"""Read values as declared types (msgspec), with one-line errors.

A file format is declared once, as msgspec Structs or dataclasses, next to the code that reads it.
Readers, error messages and the JSON Schemas in docs/schemas/ all follow from that declaration.
Numbers stay exact: a field declared as Fraction takes integers, decimals and strings such as "64/3"
(see exact.parse_fraction).
"""

import json
import re
import threading
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, inspect

from .errors import InputError, suggest
from .exact import parse_fraction

T = TypeVar("T")

# The greatest integer that a file may hold.
MOST = 10**9

_PRINTABLE = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*(?![\s\S])"
_FRACTION = r"^[+-]?([0-9]+(/[0-9]+)?|[0-9]*\.[0-9]+|[0-9]+\.)$"

# A string of one line, without control characters.
Label = Annotated[str, Meta(pattern=_PRINTABLE)]
# A Label that is not empty.
Identifier = Annotated[str, Meta(pattern=_PRINTABLE, min_length=1)]
# An integer of at least 0.
Index = Annotated[int, Meta(ge=0, le=MOST)]
# An integer of at least 1.
Count = Annotated[int, Meta(ge=1, le=MOST)]

# Held while msgspec converts: it looks into a type at its first use, running Python in between, and
# another thread that uses the type meanwhile crashes the process (msgspec 0.22; seen where two
# plans were read side by side).
CONVERTING = threading.RLock()
_LABEL = re.compile(_PRINTABLE)
_PLACE = re.compile(r" - at `\$([^`]*)`$")
_PART = re.compile(r"\.(\w+)|\[(\d+)\]")
_MISSING_FIELD = re.compile(r"^Object missing required field `(\w+)`")
_UNKNOWN_FIELD = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)
_MISSING: Any = object()


def read_as(data: object, declared: type[T], where: str) -> T:
    """Convert plain JSON values to the type `declared`, such as a msgspec Struct, and check them.

    Raise InputError with `where` (the file's name) and the path in the data: "box.json:
    devices[3].kind: expected one of ..., got 'tpu'".
    """
    try:
        with CONVERTING:
            return msgspec.convert(data, declared, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise InputError(_explain(str(error), data, declared, where)) from None


def is_label(text: str) -> bool:
    """Return whether a string is a Label: one line without control characters."""
    return _LABEL.match(text) is not None


def expected(declared: Any) -> str:
    """Return a description of the values that a declared type takes.

    An example is "a whole number from 1 to 16".
    """
    return _describe(inspect.type_info(declared))


def json_schema(declared: Any, title: str) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a declared type."""
    schema = msgspec.json.schema(declared, schema_hook=_custom_schema)
    for definition in schema["$defs"].values():  # docstrings as one line
        definition["description"] = " ".join(definition["description"].split())
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **schema}


def _decode(declared: type, value: object) -> object:
    # Fraction is the only declared type that msgspec does not know.
    if declared is Fraction:
        return parse_fraction(value)
    raise NotImplementedError(f"no reader for {declared}")


def _custom_schema(declared: type) -> dict[str, Any]:
    if declared is Fraction:
        return {
            "anyOf": [
                {"type": "number"},
                {"type": "string", "maxLength": 100, "pattern": _FRACTION},
            ]
        }
    raise NotImplementedError(f"no schema for {declared}")


def _explain(problem: str, data: object, declared: Any, where: str) -> str:
    """Rewrite an error of msgspec: its path leads to the bad value and to the declared type."""
    what, place = _PLACE.sub("", problem), "".join(_PLACE.findall(problem))
    missing = _MISSING_FIELD.match(what)
    if missing:
        place += f".{missing[1]}"
    spelled = f": {place.removeprefix('.')}" if place else ""  # like JavaScript: devices[3].kind
    unknown = _UNKNOWN_FIELD.match(what)
    if unknown:
        known = _list_fields(declared, place)
        return (
            f"{where}{spelled}: unknown field {unknown[1]!r:.40}{suggest(unknown[1], known)}; it "
            "may be of a later version of topoplan"
        )
    if "[...]" in place:  # some value of an object with any keys: msgspec does not tell which
        return f"{where}{spelled}: {what[0].lower()}{what[1:]}"
    value, info = data, inspect.type_info(declared)
    for name, number in _PART.findall(place):
        part = name or int(number)
        value, info = _value_at(value, part), _type_at(info, part)
    return f"{where}{spelled}: expected {_describe(info, value)}, got {_show(value)}"


def _list_fields(declared: Any, place: str) -> list[str]:
    """Return the names of the fields that the type at a place of `declared` has."""
    info = inspect.type_info(declared)
    for name, number in _PART.findall(place):
        info = _type_at(info, name or int(number))
    return [
        field.encode_name
        for member in _members(info)
        if isinstance(member, (inspect.StructType, inspect.DataclassType))
        for field in member.fields
    ]


def _value_at(value: Any, part: str | int) -> Any:
    if isinstance(part, int):
        return value[part]
    return value.get(part, _MISSING) if isinstance(value, dict) else getattr(value, part, _MISSING)


def _type_at(info: inspect.Type, part: str | int) -> inspect.Type:
    """Return the type of a field or item of `info`.

    For a union, it is that of the first member that has it.
    """
    for member in _members(info):
        match member:
            case inspect.StructType() | inspect.DataclassType():
                for field in member.fields:
                    if field.encode_name == part:
                        return field.type
            case inspect.ListType() | inspect.VarTupleType() if isinstance(part, int):
                return member.item_type
            case inspect.TupleType() if isinstance(part, int):
                return member.item_types[part]
    return inspect.AnyType()


def _members(info: inspect.Type) -> Sequence[inspect.Type]:
    """Return the alternatives of a type, without null and without documentation-only ones."""
    if isinstance(info, inspect.Metadata):
        return _members(info.type)
    if isinstance(info, inspect.UnionType):
        return [member for part in info.types for member in _members(part)]
    return [] if isinstance(info, inspect.NoneType) else [info]


def _describe(info: inspect.Type, value: object = _MISSING) -> str:
    """Describe the values of a type, with the constraints that `value`, if given, breaks."""
    return " or ".join(_describe_one(member, value) for member in _members(info))


def _describe_one(info: inspect.Type, value: object) -> str:  # noqa: PLR0911 (a table)
    match info:
        case inspect.LiteralType():
            return ("one of " if len(info.values) > 1 else "") + ", ".join(map(str, info.values))
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType() | inspect.FloatType():
            whole = isinstance(info, inspect.IntType)
            of_type = value is _MISSING or (
                isinstance(value, int if whole else (int, float)) and type(value) is not bool
            )
            return ("a whole number" if whole else "a number") + (_range(info) if of_type else "")
        case inspect.StrType() if not isinstance(value, str):
            return "a string"
        case inspect.StrType():
            return "a string without control characters" if value else "a string that is not empty"
        case inspect.CustomType():
            return 'a number (or a fraction such as "64/3")'
        case inspect.TupleType():
            return f"a list of {len(info.item_types)} values"
        case inspect.ListType() | inspect.VarTupleType():
            of_type = isinstance(value, (list, tuple))
            if info.min_length and not (of_type and value):
                return "a list that is not empty"
            limit = (of_type or value is _MISSING) and info.max_length is not None
            most = f" of at most {info.max_length} items" if limit else ""
            is_number = isinstance(info.item_type, (inspect.IntType, inspect.FloatType))
            return f"a list{most}" + (f", each {_describe(info.item_type)}" if is_number else "")
    return "a JSON object"


def _range(info: inspect.IntType | inspect.FloatType) -> str:
    if info.gt is not None:
        return f" above {info.gt:g}"
    if info.ge is None or info.le is None:
        return "" if info.ge is None else f" of at least {info.ge:g}"
    return f" from {info.ge:.12g} to {info.le:.12g}"


def _show(value: object) -> str:
    match value:
        case None | bool():
            return json.dumps(value)
        case dict():
            return "an object"
        case list() | tuple():
            return f"a list of {len(value)}" if value else "an empty list"
        case Decimal():
            return f"{value!s:.40}"
    return "nothing" if value is _MISSING else f"{value!r:.40}"
