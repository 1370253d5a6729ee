"""Fields of hand-written topologies: slips of known ones are errors, all others are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from called import call_command

from topoplan.synth.cost.host_costs import HostCosts
from topoplan.synth.ir.schedule import Schedule
from topoplan.topo.errors import InputError
from topoplan.topo.graph import Topology

SLIPS = {
    "link": {
        "bandwidth_GBps": "bandwith_GBps bandwidth bandwith bandwidth_gbps bandwidth_Gbps "
        "bandwidthGBps bandwidth_GB bandwidth_MBps bandwidth-GBps bandwdith_GBps band_width_GBps",
        "latency_us": "latency latency_ns latency_ms lattency_us latncy_us latencyus",
        "bidirectional": "bidirectionnal bi_directional bidirecitonal Bidirectional",
        "kind": "Kind knid",
        "count": "Count cuont",
        "src": "SRC",
    },
    "device": {
        "family": "famliy Family",
        "can_reduce": "can_reduse canReduce can-reduce",
        "numa_node": "numa-node numanode",
        "bus_id": "busid bus-id",
        "in_network": "in-network innetwork",
        "id": "ID",
    },
    "topology": {"links": "link linsk Links", "devices": "device devcies", "name": "Name nmae"},
}
OTHERS = {
    "link": "bandwidth_note bandwidth_source bandwidth_measured_GBps measured_GBps latency_note "
    "latency_p99 latency_max_us max_bandwidth_GBps peak_bandwidth_GBps width lanes gen speed rate "
    "type color cost loss label comment note notes port mount bind duplex unidirectional cable "
    "length_m resource sources kinds account mtu vlan description distance device_id",
    "device": "name uuid model memory_GB cores socket numa_distance numa_nodes bus pci_bus_id rank "
    "bus_width hostname idx uid label vendor families can_multicast sources room rack slot x "
    "network bandwidth_GBps latency_us",
    "topology": "hosts comment description author date racks network sources url tags revision "
    "schema $schema _comment device_count link_count site generated units vendor",
}


def write(part: str, **fields: Any) -> dict[str, Any]:
    """Return the JSON of a pair of GPUs, of which a part has these fields too."""
    first: dict[str, Any] = {"id": "a"}
    link: dict[str, Any] = {"src": "a", "dst": "b"}
    whole: dict[str, Any] = {"devices": [first, {"id": "b"}], "links": [link]}
    {"device": first, "link": link, "topology": whole}[part].update(fields)
    return whole


@pytest.mark.parametrize(
    ("part", "meant", "slip"),
    [(p, m, s) for p, rows in SLIPS.items() for m, slips in rows.items() for s in slips.split()],
)
def test_a_slip_of_a_field_is_an_error_that_names_the_field(
    part: str, meant: str, slip: str
) -> None:
    data = write(part, **{slip: [] if part == "topology" else 2})
    row = {"device": data["devices"][0], "link": data["links"][0], "topology": data}[part]
    row.pop(meant, None)
    with pytest.raises(InputError) as raised:
        Topology.loads(json.dumps(data), "mine.json")
    where = {"device": ": devices[0]", "link": ": links[0]", "topology": ""}[part]
    says = f"mine.json{where}: unknown field {slip!r} (did you mean {meant!r}?)"
    assert str(raised.value).startswith(says)


@pytest.mark.parametrize("value", [2, "text", [1, 2], {"a": 1}, True, None])
@pytest.mark.parametrize("part", OTHERS)
def test_all_other_fields_are_kept(part: str, value: Any) -> None:
    others = dict.fromkeys(OTHERS[part].split(), value)
    written = json.loads(Topology.loads(json.dumps(write(part, **others))).dumps())
    row = {"device": written["devices"], "link": written["links"], "topology": [written]}[part][0]
    assert {key: row[key] for key in others} == others


def test_a_field_beside_the_known_one_is_kept() -> None:
    """The known field decides, so nothing is silently at its default."""
    data = write("link", latency_us=0.5, latency_ns=500, bandwidth_GBps=24, bandwidth=24)
    assert Topology.loads(json.dumps(data)).links[0].extra == {"latency_ns": 500, "bandwidth": 24}


def test_host_costs_and_schedules_name_near_fields_too() -> None:
    with pytest.raises(InputError, match="'send_ns' \\(did you mean 'send_us'"):
        HostCosts.from_json({"send_ns": 3})
    with pytest.raises(InputError, match="'transfer' \\(did you mean 'transfers'"):
        Schedule.from_json({"collective": "allreduce", "ranks": 2, "transfer": []})


def test_a_command_reports_a_slip_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(write("link", bandwith_GBps=24)))
    done = call_command("synth", "allreduce", str(path))
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "links[0]: unknown field 'bandwith_GBps' (did you mean 'bandwidth_GBps'?)" in done.stderr
