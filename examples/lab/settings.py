"""Define the model that a report trains, and for how long; equal for every row."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, get_type_hints

import msgspec
from msgspec import Meta

from topoplan import InputError
from topoplan.topo.schema import Count, expected, read_as

_Width = Annotated[int, Meta(ge=1, le=1 << 16)]


@dataclass(frozen=True)
class Settings:
    """A perceptron with ReLU layers of widths `hidden`, trained by SGD with momentum 0.9.

    The rate falls linearly from `learning_rate` to zero; a batch of `batch` samples is divided
    among all ranks.
    """

    epochs: Annotated[int, Meta(ge=1, le=10_000)] = 8
    batch: Annotated[Count, Meta(description="samples of a step, over all ranks together")] = 128
    learning_rate: Annotated[float, Meta(gt=0)] = 0.2
    hidden: Annotated[tuple[_Width, ...], Meta(max_length=16)] = (512, 512)
    seed: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)] = 0

    def __post_init__(self) -> None:
        for name, declared in get_type_hints(Settings, include_extras=True).items():
            value = getattr(self, name)
            # msgspec checks annotations only when it decodes, and this class is also called.
            try:
                if value == float("inf"):
                    raise msgspec.ValidationError  # to msgspec it is a number like others
                msgspec.convert(value, declared)
            except msgspec.ValidationError:
                raise InputError(
                    f"{name.replace('_', ' ')} {_spell(value)}: expected {expected(declared)}",
                    parameter=name,
                ) from None

    @classmethod
    def from_json(cls, data: object, where: str = "settings") -> "Settings":
        """Read settings from a JSON object, with defaults; raise InputError if invalid."""
        return read_as(data, cls, where)

    def widths(self, features: int, classes: int) -> tuple[int, ...]:
        """Return the width of each layer: input (`features`), hidden, and output (`classes`)."""
        return (features, *self.hidden, classes)

    def steps(self, samples: int) -> int:
        """Return the number of optimizer steps in all epochs of a training on `samples` samples."""
        return self.epochs * -(-samples // self.batch)

    def parameters(self, features: int, classes: int) -> int:
        """Return the number of trained parameters."""
        return sum(a * b + b for a, b in pairwise(self.widths(features, classes)))


def _spell(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def parse_hidden(text: str) -> tuple[int, ...]:
    """Parse widths of hidden layers such as `512,512`; `none` is a linear model.

    Raise InputError for other texts.
    """
    if text.strip() == "none":
        return ()
    parts = text.split(",")
    if not all(part.strip().isdecimal() and len(part) < 10 for part in parts):
        raise InputError(
            f"{text}: expected widths separated by commas, as in 512,512, or none",
            parameter="hidden",
        )
    return tuple(int(part) for part in parts)
