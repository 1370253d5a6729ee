"""Write docs/images/report-*.png: reports as a headless browser shows them. `make screenshots`.

Needs chromium (Debian: apt-get install chromium). One of the machines is a recording that lies
outside the checkout; without it, its pictures stay as they are.
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
BRIDGED = ROOT.parent / "shared/inputs/nccl_graphs/ncv4-bridged.topology.xml"
SUBJECTS = {"dgx-a100-2": "dgx-a100:2", "ncv4-bridged": str(BRIDGED), "gb200-nvl72": "gb200-nvl72"}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# Pixels: the widths of a window on a desk and of a phone.
_WIDE, _PHONE = 1400, 390
DARK = "--blink-settings=preferredColorScheme=0"


def find_browser() -> str | None:
    """Return the path of a browser that runs without a window; None where there is none."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def browse(page: Path, *options: str, limit_s: float, width: int = 1280, height: int = 1000) -> str:
    """Open a page in a headless browser without a network; return what it prints."""
    command = [
        find_browser() or BROWSERS[0],
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--no-first-run",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={page.parent / 'profile'}",
        f"--window-size={width},{height}",
        *options,
        f"file://{page}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit_s)
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def shoot(
    page: Path, picture: Path, *options: str, limit_s: float, width: int, height: int
) -> None:
    """Write a picture of a page, of exactly this size in pixels."""
    browse(page, f"--screenshot={picture}", *options, limit_s=limit_s, width=width, height=height)
    shown = struct.unpack(">II", picture.read_bytes()[16:24])
    if shown != (width, height):
        raise RuntimeError(f"{picture}: {shown}, expected {(width, height)}")


def main() -> int:
    """Write all pictures; return the exit code."""
    if find_browser() is None:
        print("no chromium here (Debian: apt-get install chromium)", file=sys.stderr)
        return 1
    for name, subject in SUBJECTS.items():
        if "/" in subject and not Path(subject).exists():
            print(f"{subject} is not here: report-{name}.png stays as it is", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as folder:
            _write_pictures(name, subject, Path(folder))
    return 0


def _write_pictures(name: str, subject: str, folder: Path) -> None:
    """Write the three pictures of one report: its top, its plan, and the phone in the dark."""
    # Here, since tests of the core ask for find_browser.
    from topoplan.synth.extras.report.gather import gather_report
    from topoplan.synth.extras.report.page import write_page
    from topoplan.topo.loader.resolve import resolve

    written, alone = folder / "report.html", folder / "plan.html"
    text = write_page(gather_report(resolve(subject), 60))
    written.write_text(text, encoding="utf-8")
    # A browser without a window does not scroll to a section: what stands before it is taken out.
    plan = re.sub(r"<h1>.*?(?=<section id=\"allreduce\")", "", text, flags=re.DOTALL)
    alone.write_text(plan, encoding="utf-8")
    for page, suffix, options, width, height in (
        (written, "", (), _WIDE, 1360),
        (alone, "-plan", (), _WIDE, 1200),
        (written, "-phone", (DARK,), _PHONE, 1400),
    ):
        picture = IMAGES / f"report-{name}{suffix}.png"
        shoot(page, picture, *options, limit_s=120, width=width, height=height)


if __name__ == "__main__":
    sys.exit(main())
