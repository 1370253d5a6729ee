"""topoplan as it is found where it is installed: a folder for PYTHONPATH with its metadata, beside
the checkout itself.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import topoplan

ROOT = Path(__file__).resolve().parents[1]
_GROUP = re.compile(
    r'^\[project\.entry-points\."([\w.]+)"\].*\n((?:[\w-]+ = ".*"\n)+)', re.MULTILINE
)


def install_metadata(folder: Path) -> dict[str, str]:
    """Write metadata with the entry points of pyproject.toml into a folder; return the environment
    that finds them.
    """
    info = folder / "topoplan-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: topoplan\nVersion: 0\n", encoding="utf-8"
    )
    groups = _GROUP.findall((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert [name for name, _ in groups] == ["torch.distributed.backends", "torch.backends"]
    points = [f"[{name}]\n{lines}".replace('"', "") for name, lines in groups]
    (info / "entry_points.txt").write_text("\n".join(points), encoding="utf-8")
    home = Path(topoplan.__file__).parent.parent
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(home)])}
