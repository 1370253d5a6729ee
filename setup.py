"""The list of packages: every folder of the four rooms that is one. All else about the package is
in pyproject.toml.
"""

from __future__ import annotations

from setuptools import find_packages, setup
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


setup(
    packages=[
        "topoplan",
        *(
            f"topoplan.{name}"
            for name in find_packages(include=[*ROOMS, *(f"{x}.*" for x in ROOMS)])
        ),
    ],
    package_dir={"topoplan": "."},
    cmdclass={"build_py": BuildModules},
)
