"""Compare what the product does with what is recorded in tests/goldens: `make goldens`.

python scripts/compare_goldens.py                  all kinds; exit code 1 where values differ
python scripts/compare_goldens.py --only plans     some of them, separated by commas
python scripts/compare_goldens.py --renew          record them anew (make goldens RENEW=1)
python scripts/compare_goldens.py --whole FOLDER   also write all values, with no hashes in
                                                   place of long ones, for a diff of two commits
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

# Modules of tests/goldens: each has a function `record`.
KINDS = ("interface", "plans", "winners", "nccl_programs", "bits", "commands")


def main() -> int:
    """Compare, or record anew; return 1 where something differs."""
    arguments = _parse_arguments()
    store = import_module("goldens.store")
    differing = 0
    with tempfile.TemporaryDirectory(prefix="goldens-") as folder:
        os.environ["TOPOPLAN_CACHE"] = folder
        for kind in arguments.only:
            began = time.monotonic()
            cases = import_module(f"goldens.{kind}").record()
            if arguments.whole is not None:
                text = json.dumps(cases, indent=1, ensure_ascii=False)
                (arguments.whole / f"{kind}.json").write_text(text + "\n", encoding="utf-8")
            differences = store.compare(kind, cases)
            if arguments.renew:
                store.write(kind, cases)
            print(*differences, sep="\n", end="\n" if differences else "")
            print(
                f"{kind}: {len(cases)} recorded, {len(differences)} values differ, "
                f"{time.monotonic() - began:.0f} s",
                flush=True,
            )
            differing += len(differences)
    return 1 if differing and not arguments.renew else 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=_list_kinds, default=KINDS, help=", ".join(KINDS))
    parser.add_argument("--renew", action="store_true", help="write the recorded files anew")
    parser.add_argument("--whole", type=Path, metavar="FOLDER", help="write all values here")
    return parser.parse_args()


def _list_kinds(text: str) -> list[str]:
    kinds = text.split(",")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise argparse.ArgumentTypeError(
            f"{', '.join(unknown)}: expected some of {', '.join(KINDS)}"
        )
    return kinds


if __name__ == "__main__":
    sys.exit(main())
