"""Damaged inputs: every reader gives a topology that can be written again or one clear line, within
1 GiB and 10 s each.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from launch import run_command
from needs import has_extra

from topoplan.topo.errors import InputError
from topoplan.topo.formats.detect import read_topology_text
from topoplan.topo.loader.resolve import resolve

FUZZ = Path(__file__).parents[2] / "fuzz_readers.py"
# Inputs a reader: 108 in all. `python tests/fuzz_readers.py READER COUNT` takes any number.
INPUTS = {
    **({"hwloc-xml": 25} if has_extra("hwloc") else {}),
    "json": 25,
    "nccl-xml": 25,
    "nccl-log": 12,
    "smi": 15,
    "sysfs": 6,
}


@pytest.mark.long
def test_damaged_inputs_give_a_topology_or_one_line() -> None:
    wanted = [str(word) for item in INPUTS.items() for word in item]
    done = run_command(sys.executable, str(FUZZ), *wanted, quiet_s=280)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    assert done.stdout == "".join(f"{name}: {count} inputs\n" for name, count in INPUTS.items())


LAUGHS = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 12))
ATTACKS = {
    "billion laughs": f'<!DOCTYPE system [<!ENTITY l0 "ha">{LAUGHS}]><system '
    'version="1">&l11;</system>',
    "external entity": '<!DOCTYPE system [<!ENTITY x SYSTEM "file:///etc/passwd">]><system '
    'version="&x;"/>',
    "parameter entity": '<!DOCTYPE topology [<!ENTITY % x SYSTEM "http://localhost/x.dtd"> '
    "%x;]><topology/>",
    **(
        {
            "billion laughs in hwloc": "<!DOCTYPE topology [<!ENTITY l0 "
            f'"ha">{LAUGHS}]><topology>&l11;</topology>'
        }
        if has_extra("hwloc")
        else {}
    ),
    "quadratic blow-up": "<!DOCTYPE system [<!ENTITY a "
    f'"{"a" * 50_000}">]><system>{"&a;" * 50_000}</system>',
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_entities_are_refused_before_they_unfold(attack: str) -> None:
    with pytest.raises(InputError, match="declares") as caught:
        read_topology_text(ATTACKS[attack], "attack.xml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("start", ["<system>", '{"devices": [', "\tGPU0\tGPU1\n", "<topology>", ""])
def test_a_file_of_100_MB_is_refused_unread(start: str, tmp_path: Path) -> None:
    file = tmp_path / "large"
    with file.open("wb") as out:
        out.write(start.encode())
        out.truncate(100 * 2**20)
    with pytest.raises(InputError, match="larger than 16 MiB"):
        resolve(str(file))
