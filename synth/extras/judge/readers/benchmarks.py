"""Benchmarks whose tables are read beside those of nccl-tests: a line for each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..file_contents import BenchmarkResults
from . import all_reduce_bench, osu


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: its name, whether a text is its output, and its reader.

    `read` takes the lines of a text, and its name for errors. It raises InputError for tables from
    which nothing can be judged.
    """

    name: str
    looks_like: Callable[[str], bool]
    read: Callable[[Sequence[str], str], BenchmarkResults]


BENCHMARKS = (
    Benchmark("OSU micro-benchmarks", osu.looks_like, osu.read),
    Benchmark("all_reduce_bench.py", all_reduce_bench.looks_like, all_reduce_bench.read),
)


def find_benchmark(text: str) -> Benchmark | None:
    """Return the benchmark whose output a text is; None if it is none's."""
    return next((benchmark for benchmark in BENCHMARKS if benchmark.looks_like(text)), None)
