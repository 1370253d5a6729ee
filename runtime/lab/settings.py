"""What is trained, and for how long: the same for every row of a report."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ...topo.errors import InputError

_MOST_EPOCHS = 10_000
_MOST_LAYERS = 16
_WIDEST = 1 << 16


@dataclass(frozen=True)
class Settings:
    """A perceptron with ReLU layers of widths `hidden`, trained by SGD with momentum 0.9 and a rate that falls from
    `learning_rate` to zero in a straight line, on batches of `batch` samples over all ranks together.
    """

    epochs: int = 8
    batch: int = 128
    learning_rate: float = 0.2
    hidden: tuple[int, ...] = (512, 512)
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.epochs <= _MOST_EPOCHS:
            raise InputError(f"--epochs {self.epochs}: expected from 1 to {_MOST_EPOCHS}")
        if self.batch < 1:
            raise InputError(f"--batch {self.batch}: expected at least 1 sample")
        if not 0 < self.learning_rate < float("inf"):
            raise InputError(f"--learning-rate {self.learning_rate:g}: expected a number above 0")
        if len(self.hidden) > _MOST_LAYERS or not all(1 <= width <= _WIDEST for width in self.hidden):
            raise InputError(
                f"--hidden {','.join(map(str, self.hidden))}: expected up to {_MOST_LAYERS} widths from 1 to {_WIDEST}"
            )
        if not 0 <= self.seed < 1 << 31:
            raise InputError(f"--seed {self.seed}: expected a whole number from 0 to {(1 << 31) - 1}")

    def widths(self, features: int, classes: int) -> tuple[int, ...]:
        """Of all layers, input and output included."""
        return (features, *self.hidden, classes)

    def steps(self, samples: int) -> int:
        """Updates in the whole training on so many samples; the last batch of an epoch may be smaller."""
        return self.epochs * -(-samples // self.batch)

    def parameters(self, features: int, classes: int) -> int:
        """How many numbers are trained."""
        widths = self.widths(features, classes)
        return sum(a * b + b for a, b in pairwise(widths))


def parse_hidden(text: str) -> tuple[int, ...]:
    """Widths from `512,512`; `none` is a linear model. InputError where they are none."""
    if text.strip() == "none":
        return ()
    parts = text.split(",")
    if not all(part.strip().isdecimal() and len(part) < 10 for part in parts):
        raise InputError(f"--hidden {text}: expected widths separated by commas, as in 512,512, or none")
    return tuple(int(part) for part in parts)
