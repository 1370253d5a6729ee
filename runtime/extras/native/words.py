"""Encode operations of programs as the integers that the C++ library reads (operations.hpp)."""

from collections.abc import Iterable
from dataclasses import replace

from ...program.instructions import Combine, Copy, Divide, Pack, Span

# Codes of native/operations.hpp, by their order there.
_COPY, _COMBINE, _DIVIDE = range(3)
# The buffers of a program, in the order in which the library gets them.
BUFFERS = ("work", "staging")


def find_place(span: Span, width: int) -> tuple[int, int]:
    """Return the number of a span's buffer, and the span's offset in it in bytes.

    `width` is the bytes of an element.
    """
    return BUFFERS.index(span.buffer), span.start * width


def encode_local(x: object, ranks: int, width: int) -> Iterable[tuple[int, ...]]:
    """Yield the encoded operations of an instruction of a program; nothing if it is a message.

    Each is (code, two (buffer, offset in bytes), count of elements, divisor), flattened. `ranks` is
    the divisor of averages; `width` is the bytes of an element.
    """

    def place(span: Span, start: int | None = None) -> tuple[int, int]:
        return find_place(span if start is None else replace(span, start=start), width)

    match x:
        case Pack():
            start = x.into.start
            for part in x.parts:
                yield _COPY, *place(x.into, start), *place(part), part.length * width, 0
                start += part.length
        case Copy():
            for into, other in x.pairs:
                yield _COPY, *place(into), *place(other), other.length * width, 0
        case Combine():
            for into, other in x.pairs:
                yield _COMBINE, *place(into), *place(other), other.length, 0
        case Divide():
            for span in x.spans:
                yield _DIVIDE, *place(span), *place(span), span.length, ranks
