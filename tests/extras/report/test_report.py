"""The report: one page that is whole, asks the network for nothing, stays small, and says what the
tables say.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from html.parser import HTMLParser
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from called import call_command
from planned import synthesize

from topoplan.cli.running.curves import draw_rows
from topoplan.runtime.measuring.bench import BenchRow
from topoplan.synth.channels.channels import Channels, algbw_GBps, schedule_channels
from topoplan.synth.cost.affine import costs_between_gpus
from topoplan.synth.cost.segmentation import reroute
from topoplan.synth.cost.transfer_times import predict_times
from topoplan.synth.extras.heat_map import draw_heat_map
from topoplan.synth.extras.report import gather
from topoplan.synth.extras.report.gather import gather_report, report_plan
from topoplan.synth.extras.report.html import list_pictures, make_table
from topoplan.synth.extras.report.page import write_machine, write_page
from topoplan.synth.extras.report.plans import list_entries, write_section
from topoplan.synth.extras.report.trees import ChunkFlow, draw_flow, list_flows
from topoplan.synth.extras.stock.model import StockModel, model_stock
from topoplan.synth.extras.stock.stock_ring import StockRing, find_order
from topoplan.synth.extras.traces.timeline import MAX_ROWS, draw_links, draw_timeline
from topoplan.synth.ir.collective import Collective
from topoplan.synth.numeric.effort import Effort
from topoplan.synth.pictures.curves import Curve, draw_curves
from topoplan.synth.plan import Plan
from topoplan.synth.request import Request
from topoplan.synth.verify import verify
from topoplan.topo.derived.hosts import join_hosts
from topoplan.topo.extras.pictures import svg
from topoplan.topo.extras.pictures.collapse import MAX_CABLES, collapse
from topoplan.topo.extras.pictures.part import draw_part
from topoplan.topo.graph import Device, Link, Topology, both_directions
from topoplan.topo.loader.resolve import load_for_planning, resolve
from topoplan.topo.pictures.cables import find_cables
from topoplan.topo.presets import preset
from topoplan.topo.routes import Router

INPUTS = Path(__file__).resolve().parents[3] / "../shared/inputs/nccl_graphs"
_VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """Reads a page: its sections, and whether every element that is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sections: list[str] = []
        self.drawn = 0
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.drawn += tag in ("path", "rect", "polyline", "circle")
        for name, value in attrs:
            assert name not in ("src", "onload", "onclick"), (tag, name)
            assert name != "href" or str(value).startswith("#"), value
        if tag == "section":
            self.sections.append(str(dict(attrs)["id"]))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()


def read(text: str) -> Page:
    """Return the page, having checked what holds for all: it is whole, small, and names nothing
    that is elsewhere.
    """
    page = Page(text)
    assert page.open == []
    assert text.startswith("<!DOCTYPE html>")
    assert text.rstrip().endswith("</html>")
    assert len(text.encode()) < 2_000_000
    assert re.findall(r"https?://|url\((?!#)|@import|<script|<link", text) == []
    assert 'name="viewport"' in text
    assert "prefers-color-scheme:dark" in text
    return page


def report(*args: str, code: int = 0) -> CompletedProcess[str]:
    done = call_command("report", *args)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_a_report_of_a_preset_is_written_once(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    report("ring:4", "-o", str(target), "--time-limit", "3")
    first = target.read_text(encoding="utf-8")
    page = read(first)
    assert page.sections == [
        "machine",
        "findings",
        "allreduce",
        "allgather",
        "reduce-scatter",
        "broadcast",
        "alltoall",
    ]
    refused = report("ring:4", "-o", str(target), "--time-limit", "3", code=2)
    assert "--force" in refused.stderr
    assert target.read_text(encoding="utf-8") == first


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("no-such", "-o", "x.html"), "no-such"),
        (("ring:4",), "-o"),
        (("ring:4", "-o", ""), "empty"),
        (("ring:4", "-o", "/no/such/folder/x.html", "--time-limit", "0.2"), "folder"),
        (("ring:4", "-o", "x.html", "--time-limit", "0"), "--time-limit"),
    ],
)
def test_bad_input_is_one_line(args: tuple[str, ...], says: str) -> None:
    done = report(*args, code=2)
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_report_of_a_plan_has_its_collective_alone(
    plans: Callable[..., str], tmp_path: Path
) -> None:
    path = plans("switch:4", "allgather")
    target = tmp_path / "plan.html"
    report(path, "-o", str(target))
    text = target.read_text(encoding="utf-8")
    assert read(text).sections == ["machine", "findings", "allgather"]
    assert Plan.load(path).topology.name in text


def test_a_damaged_plan_is_refused(plans: Callable[..., str], tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.json"
    damaged.write_text(
        Path(plans("ring:4")).read_text(encoding="utf-8").replace('"ranks": 4', '"ranks": 5', 1)
    )
    assert "hash" in report(str(damaged), "-o", str(tmp_path / "x.html"), code=5).stderr


def test_names_from_a_file_cannot_break_the_page() -> None:
    hostile = '<script>alert(1)</script>"&\x00'
    devices = (Device(hostile, "gpu"), Device("b", "gpu"))
    topology = Topology(
        hostile, devices, both_directions(Link(hostile, "b")), extra={"notes": [hostile]}
    )
    text = write_page(gather_report(topology, 1))
    read(text)
    assert "&lt;script&gt;" in text


def test_a_machine_with_one_gpu_or_none_has_a_page_too() -> None:
    for count, said in ((0, "<b>0</b><span>GPUs<"), (1, "<b>1</b><span>GPU<")):
        devices = (Device("cpu0", "cpu"), *(Device(f"gpu{i}", "gpu") for i in range(count)))
        text = write_page(gather_report(Topology("small", devices, ()), 1))
        assert read(text).sections == ["machine", "findings"] and said in text


@pytest.mark.parametrize("name", ["dgx-a100:128", "mesh:32x32"])
def test_a_thousand_gpus_are_drawn_as_a_few(name: str) -> None:
    drawn = collapse(preset(name))
    assert drawn.left_out is not None
    assert len(find_cables(drawn.topology)) <= MAX_CABLES
    assert len(drawn.topology.ranks) <= 64


@pytest.mark.long
def test_more_gpus_than_are_planned_for_make_a_page_of_less_than_a_thousand_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gather, "_PLANNED_RANKS", 64)
    page = read(write_page(gather_report(preset("dgx-a100:9"), 1)))
    assert page.drawn < 1000
    assert page.sections == ["machine", "findings", "allreduce"]


def test_more_gpus_than_usual_are_planned_for_where_there_is_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gather, "_LARGE_RANKS", 2)
    monkeypatch.setattr(gather, "_PLANNED_RANKS", 4)
    (section,) = gather_report(preset("ring:6"), 1).sections
    assert section.plan is None and "a time limit of 60 s has one" in str(section.missing)
    monkeypatch.setattr(gather, "_LARGE_PLAN_S", 1)
    (section,) = gather_report(preset("ring:6"), 1).sections
    assert section.plan is not None and section.missing is None


def test_a_page_says_the_machines_name_once_and_its_pictures_as_files_too() -> None:
    page = write_machine(preset("pcie-2socket"))
    (picture,) = (text for _, text in list_pictures(page))
    drawn, whole = (
        float(re.findall(r'viewBox="\S+ \S+ \S+ ([^"]+)"', x)[0]) for x in (page, picture)
    )
    assert whole == drawn + svg.TITLE_HEIGHT and "data-whole" not in picture
    assert picture == draw_part(preset("pcie-2socket"))[0]


@pytest.mark.parametrize(("name", "number"), [("dgx-a100", 0), ("dgx-a100:2", 1), ("dgx2", 0)])
def test_rates_of_sixteen_gpus_are_a_heat_map_where_they_differ(name: str, number: int) -> None:
    page = write_machine(preset(name))
    assert page.count("from GPU (row) to GPU (column)</figcaption>") == number
    assert ("from\u00a0\\\u00a0to" in page) is (name == "dgx-a100")


def test_small_squares_that_are_alike_are_one_bar() -> None:
    picture = draw_heat_map(preset("dgx-a100:4"), merge=True)
    # Most rows have bars for the GPUs of the host before and after the GPU itself, and of others.
    assert picture.count("<rect") < 4 * 32
    assert "<title>gpu0 -&gt; gpu1: 300 GB/s</title>" in draw_heat_map(preset("dgx-a100:4"))


def test_columns_with_hardly_a_text_are_left_out() -> None:
    rows = [("a", "", "1"), ("b", "", ""), ("c", "x", "3"), ("d", "", "4")]
    table = make_table(("name", "sparse", "number"), rows, right=(2,))
    assert "sparse" not in table and '<th class="n">number</th>' in table
    assert "sparse" in make_table(("name", "sparse", "number"), rows, keep_sparse=True)


def test_sizes_above_16_gib_are_counted_alone() -> None:
    plan = synthesize(Collective("allreduce", 8), preset("dgx1"), "packing").plan
    larger = [entry for entry in plan.entries if entry.min_bytes > 1 << 34]
    table = list_entries(plan)
    assert table.count("<tr>") == 1 + len(plan.entries) - len(larger)
    assert table.count('<td class="n">and larger</td>') == 1
    assert larger and f"the plan has {len(larger)} more ranges" in table
    assert f">{larger[0].schedule.label}<" not in table


def test_trees_have_a_box_for_each_socket_or_host() -> None:
    flow = ChunkFlow({(0, 1, "copy"): 0, (0, 4, "copy"): 1}, Fraction(1), 1)
    for name, labels in (("pcie-2socket", ("socket 0", "socket 1")), ("dgx-a100:2", ("host 0",))):
        drawn = draw_flow(preset(name), flow)
        assert [f">{label}</text>" in drawn for label in labels] == [True] * len(labels)
        assert drawn.count('<rect class="w"') == 2
    assert "<rect" not in draw_flow(preset("dgx1"), flow)


def test_alike_hosts_are_drawn_once_where_all_of_them_could_not_be_read(tmp_path: Path) -> None:
    names = [
        f"{kind}{i}" for kind in ("GPU", "NIC") for i in range(8)
    ]  # each GPU with a NIC below two PCIe switches
    rows = [
        [
            a,
            *(
                "X"
                if a == b
                else "NV18"
                if a[:3] == b[:3] == "GPU"
                else "PXB"
                if a[3] == b[3]
                else "NODE"
                for b in names
            ),
        ]
        for a in names
    ]
    (tmp_path / "host.txt").write_text(
        "\n".join("\t".join(row) for row in [["", *names], *rows]), encoding="utf-8"
    )
    page = write_machine(join_hosts([resolve(str(tmp_path / "host.txt"))] * 2))
    found = re.search(r'<svg style="min-width:(\d+)px" width="(\d+)"', page)
    assert found is not None and int(found[1]) > int(found[2]) / 2
    assert "one box of each kind is drawn: there are 2 like that of host0/gpu0" in page
    assert ">x16<" in page  # as in topo-probe's table


def test_boxes_that_differ_are_both_drawn() -> None:
    machine = preset("dgx-a100:8")
    # The links of one GPU of the last box to its NVSwitches are half as wide.
    slow = machine.ranks[-1]
    switch = {d.id for d in machine.devices if d.family == "nvswitch"}
    links = tuple(
        replace(x, bandwidth_GBps=x.bandwidth_GBps / 2)
        if slow in (x.src, x.dst) and switch & {x.src, x.dst}
        else x
        for x in machine.links
    )
    drawn = collapse(replace(machine, links=links))
    assert len(drawn.topology.ranks) == 16
    assert slow in drawn.topology.ranks
    assert "7 like that of gpu0" in str(drawn.left_out)


def test_small_machines_are_drawn_whole() -> None:
    for name in ("dgx1", "dgx-a100:2", "pcie-2socket", "torus:8x8"):
        machine = preset(name)
        assert collapse(machine).topology is machine


@pytest.mark.parametrize("name", ["allreduce", "allgather", "reduce-scatter"])
def test_stock_ring_costs_what_its_schedule_costs(name: str) -> None:
    for machine in (preset("switch:6"), preset("mi250"), preset("ring:5")):
        collective = Collective(name, len(machine.ranks))
        request = Request(collective, machine, Effort())
        ring = Channels("ring", (find_order(Router(machine)),))
        schedule = schedule_channels(request, ring, "ring")
        verify(schedule, machine)
        cost = costs_between_gpus(schedule, machine, [1])[0]
        stock = StockRing(collective, Router(machine))
        for size in (1 << 10, 1 << 30):
            assert stock.time_s(size) == pytest.approx(cost.time_s(size))


def test_stock_is_what_nccl_finds_where_it_is_modelled() -> None:
    machine = preset("pcie-2socket")
    stock = StockRing(Collective("allreduce", 8), Router(machine))
    model = model_stock(machine)
    assert isinstance(model, StockModel)
    assert stock.is_modelled
    assert stock.name == "stock NCCL" and not stock.reason
    assert model.pick(1 << 30) == "rings"
    request = Request(Collective("allreduce", 8), machine, Effort())
    rings = Channels("ring", model.rings.orders[: model.channels])
    limit = float(algbw_GBps(schedule_channels(request, rings, "rings"), machine))
    assert stock.algbw_GBps(1 << 34) == pytest.approx(limit, rel=0.01)


@pytest.mark.parametrize("name", ["broadcast", "reduce"])
def test_stock_broadcasts_along_all_rings_of_nccl(name: str) -> None:
    """One chain on one ring would make plans for a DGX-1 look six times as good as they are."""
    machine = preset("dgx1")
    stock = StockRing(Collective(name, 8, 3), Router(machine))
    model = model_stock(machine)
    assert isinstance(model, StockModel) and stock.is_modelled
    rings = min(model.channels, len(model.rings.orders))
    assert stock.algbw_GBps(1 << 34) > 0.9 * float(model.rings.speed_GBps) * rings


def test_stock_on_mi300x_is_what_rccls_table_has() -> None:
    """Its rings use all 7 links of 64 GB/s of every GPU: 448 GB/s, of which 7/4 of a buffer."""
    stock = StockRing(Collective("allreduce", 8), Router(preset("mi300x")))
    assert stock.is_modelled and stock.name == "stock RCCL"
    assert stock.algbw_GBps(1 << 36) == pytest.approx(256, rel=0.01)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("torus:3x3", "the topology is a graph without PCIe or NVLink"),
        ("spark-ring:3", "no switch joins the hosts"),
        ("dgx-a100:2", ""),
        ("pcie-2socket", ""),
    ],
)
def test_a_page_says_what_plans_are_compared_with(name: str, why: str) -> None:
    machine = preset(name)
    section = gather.Section(collective := Collective("allreduce", len(machine.ranks)))
    topology, router = load_for_planning(name)
    section.plan = synthesize(collective, topology, "ring", router=router).plan
    section.stock = StockRing(collective, router)
    text = write_section(section, topology, with_pictures=False)
    caveat = re.search(r"<p>(Compared with .*?)</p>", text)
    assert caveat is not None and text.index("Compared with") < text.index("/ plan</th>")
    if why:
        assert f"not modelled: {why}" in caveat[1] and "no gain over NCCL" in caveat[1]
        assert "one ring / plan" in text and "one ring, not NCCL" in text
    else:
        assert (
            re.search("stock NCCL( at best)? / plan", text)
            and "Neither side is measured" in caveat[1]
        )


def test_stock_on_several_hosts_is_what_its_rings_carry_at_most() -> None:
    machine = load_for_planning("dgx-a100:3")[0]
    stock = StockRing(Collective("allreduce", 24), Router(machine))
    assert stock.what.startswith("at most what a flat ring carries") and stock.assumes
    assert stock.name == "stock NCCL at best"
    # 8 NICs of 25 GB/s a host
    assert stock.algbw_GBps(1 << 40) == pytest.approx(200 * 24 / 46, rel=1e-4)


def test_rank_order_is_kept_where_it_has_routes() -> None:
    assert find_order(Router(preset("dgx-a100"))) == tuple(range(8))
    order = find_order(Router(preset("dgx1")))
    assert order != tuple(range(8))
    assert sorted(order) == list(range(8))


def test_curves_hold_every_point_and_the_bound() -> None:
    points = tuple((1 << bits, float(bits)) for bits in range(10, 20))
    text = draw_curves("a <title>", [Curve("plan", "plan", points)], ("bound", 25.0), alone=True)
    assert "a &lt;title&gt;" in text
    line = re.search(r'<polyline[^>]*points="([^"]*)"', text)
    assert line is not None
    numbers = [float(x) for x in line[1].split()]
    assert len(numbers) == 2 * len(points)
    assert numbers[0::2] == sorted(numbers[0::2])
    assert numbers[1::2] == sorted(numbers[1::2], reverse=True)


def test_a_legend_that_is_too_long_has_a_second_row() -> None:
    points = ((1 << 10, 1.0), (1 << 20, 2.0))
    curves = [Curve("a name of thirty letters or so", look, points) for look in ("plan", "stock")]
    assert 'y="34.0"' not in draw_curves("curves", curves[:1], ("bound", 25.0))
    assert 'y="34.0"' in draw_curves("curves", curves, ("bound", 25.0))


def test_a_timeline_draws_the_first_ranks_alone(plans: Callable[..., str]) -> None:
    plan = Plan.load(plans("switch:4"))
    schedule = plan.entry_for(1 << 20).schedule
    times = predict_times(schedule, plan.topology, 1 << 20)
    text = draw_timeline("timeline", times, 4)
    assert [f"rank {rank}</text>" in text for rank in range(5)] == [True] * 4 + [False]
    links = draw_links("links", times, plan.topology)
    gpu, switch = (
        plan.topology.ranks[0],
        next(d.id for d in plan.topology.devices if d.kind == "switch"),
    )
    shares = [int(x) for x in re.findall(r"(\d+)%</text>", links)]
    assert f"{gpu} &gt; {switch}" in links and len(shares) == 8 == 2 * len(plan.topology.ranks)
    assert shares == sorted(shares, reverse=True) and 0 < shares[0] <= 100
    many = [replace(time, src=time.src + 4 * i) for i in range(8) for time in times]
    text = draw_timeline("timeline", many, 32)
    assert f"rank {MAX_ROWS - 1}</text>" in text
    assert f"rank {MAX_ROWS}</text>" not in text


@pytest.mark.long
def test_flows_make_up_the_whole_buffer(plans: Callable[..., str]) -> None:
    plan = Plan.load(plans("dgx1", "allreduce", "packing"))
    schedule = reroute(plan.entries[-1].schedule.uncut, plan.router)
    flows = list_flows(schedule)
    assert sum(flow.share for flow in flows) == 1
    text = draw_flow(plan.topology, flows[0])
    assert text.count("<circle") == 8
    report_plan(plan, "plan.json", 1)


@pytest.mark.long
def test_the_bridged_box_is_reported() -> None:
    path = INPUTS / "ncv4-bridged.topology.xml"
    if not path.exists():
        pytest.skip(f"recorded machine {path} is not here")
    from topoplan.topo.loader.resolve import resolve

    text = write_page(gather_report(resolve(str(path)), 4))
    assert read(text).sections[:3] == ["machine", "findings", "allreduce"]
    assert "24 GB/s" in text


def test_topo_synth_plots_the_plan(tmp_path: Path) -> None:
    target = tmp_path / "curves.svg"
    asked = (
        "--collective",
        "allreduce",
        "--topology",
        "ring:4",
        "--strategy",
        "ring",
        "--plot",
        str(target),
    )
    done = call_command("synth", *asked)
    assert done.returncode == 0, done.stderr
    text = target.read_text(encoding="utf-8")
    assert text.count("<polyline") == 2
    assert "bound: " in text
    assert call_command("synth", *asked).returncode == 2


def test_measured_rows_are_plotted_and_a_bound_of_another_machine_is_not() -> None:
    def row(size: int, plan_us: float | None, fraction: float | None) -> BenchRow:
        return BenchRow(
            size, "ring", plan_us, 2.0 * size, None, None, 0.001, 0.002, fraction, 0, None, 0.0
        )

    near = draw_rows("allreduce", [row(1 << bits, float(1 << bits), 0.5) for bits in range(10, 14)])
    assert near.count("<polyline") == 2
    assert "bound: 0.002" in near
    far = draw_rows("allreduce", [row(1024, 1024.0, 1e-6)])
    assert "bound: " not in far
    assert "<svg" in draw_rows("allreduce", [])
