"""What the doctor says of texts that show why a run fails, alone and beside machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from called import call_command
from needs import has_extra

pytestmark = pytest.mark.skipif(not has_extra("doctor"), reason="without the extra: doctor")

LOG = """\
h1:12:34 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>
h1:12:34 [0] misc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-a to 9
"""


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "fail.log"
    path.write_text(LOG)
    return str(path)


def test_a_log_alone_is_answered_and_counts_as_an_error(log: str) -> None:
    called = call_command("topoplan", "doctor", log)
    assert called.returncode == 1
    assert called.stdout.splitlines()[0].endswith("(line 2) [shm-full]")
    assert called.stderr.count("\n") == 1 and "no machine to check: " in called.stderr
    called = call_command("topoplan", "doctor", "--json", "-q", log)
    (answer,) = json.loads(called.stdout)["answers"]
    assert (answer["symptom"], answer["line"]) == ("shm-full", 2) and not called.stderr


def test_a_log_beside_a_machine_leaves_the_machine_checked(log: str) -> None:
    called = call_command("topoplan", "doctor", "dgx-a100", log)
    assert called.returncode == 0 and "[shm-full]" in called.stdout
    assert called.stdout.startswith("nothing wrong found in ")
    shown = json.loads(call_command("topoplan", "doctor", "--json", "dgx-a100", log).stdout)
    assert shown["name"] == "dgx-a100"
    assert [answer["symptom"] for answer in shown["answers"]] == ["shm-full"]
    plain = call_command("topoplan", "probe", "--json", "dgx-a100").stdout
    assert "answers" not in json.loads(plain)


def test_answers_of_several_logs_name_no_line(log: str, tmp_path: Path) -> None:
    other = tmp_path / "other.log"
    other.write_text("NCCL WARN socketProgress: Connection closed by remote peer n2<1>\n")
    called = call_command("topoplan", "doctor", "--json", log, str(other))
    answers = json.loads(called.stdout)["answers"]
    assert [answer["symptom"] for answer in answers] == ["shm-full", "peer-ended"]
    assert {answer["line"] for answer in answers} == {None}


def test_a_text_that_shows_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("all is slow, and it hangs\n")
    called = call_command("topoplan", "doctor", str(tmp_path / "words.txt"))
    assert called.returncode == 2 and not called.stdout and called.stderr.count("\n") == 1
