"""The report in a real browser fits a phone, and its pictures in the docs are small."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

import patience
import pytest
from write_screenshots import IMAGES, browse

from topoplan.synth.extras.report.gather import gather_report
from topoplan.synth.extras.report.page import write_page
from topoplan.topo.loader.resolve import resolve

MOST_BYTES = 300_000


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a machine whose matrix of GPUs is wider than a phone."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(write_page(gather_report(resolve("pcie-2socket"), 2)), encoding="utf-8")
    return path


@pytest.mark.network("browser")
@pytest.mark.parametrize(("width", "is_cut"), [(390, True), (1400, False)])
def test_nothing_scrolls_sideways_but_what_has_a_shadow(
    page: Path, width: int, is_cut: bool
) -> None:
    script = (
        "<script>const wide = [...document.querySelectorAll('main *')].filter(x => x.scrollWidth > "
        "x.clientWidth && x.clientWidth && getComputedStyle(x).overflowX != 'visible'); "
        "const bare = wide.filter(x => !getComputedStyle(x).backgroundImage.includes('gradient')); "
        "parent.document.title = `${document.documentElement.scrollWidth} of ${innerWidth}, "
        "${bare.length} bare, ${wide.length > 0}`</script></body>"
    )
    text = page.read_text(encoding="utf-8").replace("</body>", script)
    # Windows cannot be as narrow as a phone; frames can.
    frame = page.with_name(f"frame-{width}.html")
    frame.write_text(
        f'<iframe style="border:0;width:{width}px;height:900px" srcdoc="{escape(text)}"></iframe>',
        "utf-8",
    )
    printed = browse(frame, "--dump-dom", limit_s=patience.seconds(120))
    said = re.search(r"<title>(.*)</title>", printed)
    assert said is not None
    assert said[1] == f"{width} of {width}, 0 bare, {str(is_cut).lower()}"


def test_the_pictures_of_the_docs_are_small() -> None:
    pictures = sorted(IMAGES.glob("report-*.png"))
    assert pictures
    assert [path.name for path in pictures if path.stat().st_size > MOST_BYTES] == []
