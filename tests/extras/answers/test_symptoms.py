"""The table of symptoms: each shows in two texts of different sources, and not in a near miss."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from topoplan.topo.answers import Question, ask, cut_text, describe_answers
from topoplan.topo.extras.answers.symptom import Symptom
from topoplan.topo.extras.answers.symptoms import SYMPTOMS

SAMPLES = Path(__file__).parent / "samples.txt"
NAMES = [symptom.name for symptom in SYMPTOMS]


@dataclass(frozen=True)
class Sample:
    symptom: str
    shows: bool
    source: str
    question: Question


def read_samples() -> list[Sample]:
    samples = []
    for part in SAMPLES.read_text(encoding="utf-8").split("=== ")[1:]:
        head, _, body = part.partition("\n")
        shows = not head.startswith("not ")
        symptom, source = head.removeprefix("not ").split(" ", 1)
        lines = body.splitlines(keepends=True)
        given = dict(line[1:].split(maxsplit=1) for line in lines if line.startswith("@"))
        question = Question(
            "".join(line for line in lines if not line.startswith("@")),
            tuple(given.get("findings", "").split()),
            float(given["busbw"]) if "busbw" in given else None,
        )
        samples.append(Sample(symptom, shows, source, question))
    return samples


SAMPLES_READ = read_samples()


def list_names(question: Question) -> list[str]:
    return [answer.symptom for answer in ask(question)]


@pytest.mark.parametrize("name", NAMES)
def test_a_symptom_shows_in_two_sources_and_not_in_a_near_miss(name: str) -> None:
    own = [sample for sample in SAMPLES_READ if sample.symptom == name]
    shown = [sample for sample in own if sample.shows]
    assert len({sample.source for sample in shown}) == len(shown) >= 2, name
    for sample in shown:
        assert name in list_names(sample.question), sample.source
    missed = [sample for sample in own if not sample.shows]
    assert missed
    for sample in missed:
        assert name not in list_names(sample.question), sample.source


@pytest.mark.parametrize("sample", [x for x in SAMPLES_READ if x.shows], ids=lambda x: x.source)
def test_the_symptom_of_a_sample_is_the_first_answer_or_as_sure(sample: Sample) -> None:
    answers = ask(sample.question)
    own = next(answer for answer in answers if answer.symptom == sample.symptom)
    assert own.sure == answers[0].sure


def test_all_samples_are_of_symptoms_and_names_are_unique() -> None:
    assert {sample.symptom for sample in SAMPLES_READ} == set(NAMES)
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("symptom", SYMPTOMS, ids=lambda symptom: symptom.name)
def test_an_entry_is_whole(symptom: Symptom) -> None:
    assert re.fullmatch(r"https://\S+", symptom.source)
    for text in (symptom.because, symptom.do):
        assert 20 < len(text) < 300 and text == " ".join(text.split()) and not text.endswith(".")


def test_what_is_not_known_has_no_answer() -> None:
    text = "n1:1:1 [0] NCCL INFO Channel 00/02 :    0   1\nall is slow, and it hangs\n"
    assert ask(Question(text)) == () == ask(Question())
    assert describe_answers(()) == []


def test_lines_keep_their_numbers_in_long_texts_and_among_many_that_are_alike() -> None:
    filler = "".join(f"n1:{n}:1 [0] NCCL INFO Channel {n}/0 : 0[0] -> 1[1]\n" for n in range(999))
    (answer,) = ask(Question(filler + "bind: EADDRINUSE\n" + filler))
    assert answer.line == 1000
    long = "x" * (9 << 20) + "\n" + "y\n" * 1000 + "z" * (5 << 20) + "\nEADDRINUSE\n"
    cut = cut_text(long)
    assert len(cut) < len(long) and cut.count("\n") == long.count("\n")
    (answer,) = ask(Question(cut))
    assert answer.line == 1003


def test_a_copied_page_and_colours_are_read() -> None:
    text = "\x1b[31mNCCL WARN Net : Connect to 10.0.0.9&lt;5&gt; failed : No route to host\x1b[0m"
    assert list_names(Question(text)) == ["unreached"]


def test_the_surest_answer_comes_first_and_others_by_name() -> None:
    text = (
        "NCCL WARN socketProgress: Connection closed by remote peer n2<1>\n"
        "n1:1:1 [0] misc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-a to 9"
    )
    first, second = ask(Question(text))
    assert (first.symptom, second.symptom) == ("shm-full", "peer-ended")
    lines = describe_answers((first, second))
    assert lines[0].startswith("why, high certainty: ") and lines[0].endswith("(line 2) [shm-full]")
    assert lines[1].startswith("    -> ") and lines[2].startswith("    found in https://")
    assert lines[3] == "or: peer-ended (low)"
    assert describe_answers((first, second), in_full=2)[3].startswith("or, low certainty: ")
