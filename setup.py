"""The list of packages, the library in C++, and the README for metadata.

All else about the package is in pyproject.toml.
"""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_py import build_py

ROOMS = ["topo", "synth", "runtime", "cli"]


class BuildModules(build_py):
    """Without this file, which stands in the folder of the package `topoplan` too."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """Return (package, module, file) for each module of a package."""
        return [
            module
            for module in super().find_package_modules(package, package_dir)
            if module[1] != "setup"
        ]


# Plays schedules in memory that ranks on one host share, and over MPI. Optional: where it cannot be
# built (no compiler, no Linux), topoplan is installed without it. It uses nothing of Python, so one
# wheel serves all versions; ctypes loads it. Integers wrap around, as torch's do.
NATIVE = Path("runtime/extras/native")
LIBRARY = Extension(
    "topoplan.runtime.extras.native._library",
    [str(path) for path in sorted(NATIVE.glob("*.cpp"))],
    depends=[str(path) for path in sorted(NATIVE.glob("*.hpp"))],
    extra_compile_args=["-std=c++17", "-O3", "-fwrapv"],
    language="c++",
    optional=True,
    py_limited_api=True,
)


def read_readme() -> str:
    """Return the README without pictures, and with relative links as their plain text.

    Package indexes and `importlib.metadata` show it without the files beside it, and the project
    has no public address that links could begin with.
    """
    text = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"^!\[[^]]*\]\([^)]*\)\n\n?", "", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^]]*)\]\((?![a-z]+://)[^)]*\)", r"\1", text)
    return (
        f"{text}\nThe pictures and the pages under docs/ come with the source distribution; they "
        "are not shown here, since the project has no public address yet.\n"
    )


setup(
    long_description=read_readme(),
    long_description_content_type="text/markdown",
    packages=[
        "topoplan",
        *(
            f"topoplan.{name}"
            for name in find_packages(include=[*ROOMS, *(f"{x}.*" for x in ROOMS)])
        ),
    ],
    package_dir={"topoplan": "."},
    cmdclass={"build_py": BuildModules},
    ext_modules=[LIBRARY] if NATIVE.is_dir() else [],  # an extra can be deleted
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
