"""The report in a real browser: it fits a phone, is dark where that is asked for, and its
screenshots are those of the docs.

`TOPOPLAN_WRITE_SCREENSHOTS=1 pytest tests/topo/pictures/test_screenshots.py` writes
docs/images/report-*.png anew.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import zlib
from html import escape
from pathlib import Path

import patience
import pytest

from topoplan.synth.report.gather import gather_report
from topoplan.synth.report.page import write_page
from topoplan.topo.loader.resolve import resolve

ROOT = Path(__file__).resolve().parents[3]
IMAGES = ROOT / "docs" / "images"
BRIDGED = ROOT / "../shared/inputs/nccl_graphs/ncv4-bridged.topology.xml"
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
SUBJECTS = {"dgx-a100-2": "dgx-a100:2", "ncv4-bridged": str(BRIDGED), "gb200-nvl72": "gb200-nvl72"}
MOST_BYTES = 300_000
_DARK = "--blink-settings=preferredColorScheme=0"
_WRITES = os.environ.get("TOPOPLAN_WRITE_SCREENSHOTS") == "1"

pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="no chromium here (apt-get install chromium)"
)


def browse(page: Path, *options: str, width: int = 1280, height: int = 1000) -> str:
    """Open a page in a headless browser without a network; return what it prints."""
    command = [
        str(BROWSER),
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
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=patience.seconds(120)
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def shoot(page: Path, picture: Path, *options: str, width: int, height: int) -> None:
    browse(page, f"--screenshot={picture}", *options, width=width, height=height)
    assert read_size(picture) == (width, height)


def read_size(picture: Path) -> tuple[int, int]:
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def read_first_pixel(picture: Path) -> tuple[int, ...]:
    """Return red, green and blue of the upper left corner, which has no pixel before it that it
    could be told by.
    """
    data, place, packed = picture.read_bytes(), 8, b""
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        if data[place + 4 : place + 8] == b"IDAT":
            packed += data[place + 8 : place + 8 + length]
        place += length + 12
    return tuple(zlib.decompress(packed)[1:4])


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a machine whose matrix of GPUs is wider than a phone."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(write_page(gather_report(resolve("pcie-2socket"), 2)), encoding="utf-8")
    return path


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_but_tables_and_pictures_scrolls_sideways(page: Path, width: int) -> None:
    script = (
        "<script>parent.document.title = `${document.documentElement.scrollWidth} of "
        "${innerWidth}`</script></body>"
    )
    text = page.read_text(encoding="utf-8").replace("</body>", script)
    # Windows cannot be as narrow as a phone; frames can.
    frame = page.with_name(f"frame-{width}.html")
    frame.write_text(
        f'<iframe style="border:0;width:{width}px;height:900px" srcdoc="{escape(text)}"></iframe>',
        "utf-8",
    )
    assert f"<title>{width} of {width}</title>" in browse(frame, "--dump-dom")


def test_the_page_is_light_or_dark_as_its_reader_is(page: Path, tmp_path: Path) -> None:
    shoot(page, tmp_path / "light.png", width=600, height=400)
    shoot(page, tmp_path / "dark.png", _DARK, width=600, height=400)
    assert min(read_first_pixel(tmp_path / "light.png")) > 200
    assert max(read_first_pixel(tmp_path / "dark.png")) < 60


@pytest.mark.skipif(
    not _WRITES, reason="TOPOPLAN_WRITE_SCREENSHOTS=1 writes the pictures of the docs anew"
)
@pytest.mark.parametrize("name", SUBJECTS)
def test_write_the_pictures_of_the_docs(name: str, tmp_path: Path) -> None:
    subject = SUBJECTS[name]
    if "/" in subject and not Path(subject).exists():
        pytest.skip("the recorded machine is not here")
    written = tmp_path / "report.html"
    written.write_text(write_page(gather_report(resolve(subject), 60)), encoding="utf-8")
    shoot(written, IMAGES / f"report-{name}.png", width=1280, height=1500)
    # A browser without a window does not scroll to a section: what stands before it is taken out.
    text = written.read_text(encoding="utf-8")
    alone = tmp_path / "plan.html"
    alone.write_text(
        re.sub(r"<h1>.*?(?=<section id=\"allreduce\")", "", text, flags=re.DOTALL), encoding="utf-8"
    )
    shoot(alone, IMAGES / f"report-{name}-plan.png", width=1280, height=1560)
    shoot(written, IMAGES / f"report-{name}-phone.png", _DARK, width=390, height=1400)


def test_the_pictures_of_the_docs_are_small() -> None:
    pictures = sorted(IMAGES.glob("report-*.png"))
    assert pictures
    assert [path.name for path in pictures if path.stat().st_size > MOST_BYTES] == []
