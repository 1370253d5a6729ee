"""Why a run hangs, fails or is slow: what extras answer to what judge has read and found.

Extras are topoplan's optional features; those that know public threads of such problems answer.
"""

from ....topo.answers import Answer, Question, ask
from .file_contents import FileContents, FileFinding, NothingToJudgeError
from .machine import JudgedMachine
from .ranking import is_healthy
from .verdict import FileVerdict


def find_answers(verdict: FileVerdict) -> tuple[Answer, ...]:
    """Return the answers on a file, the surest first; none where nothing is lost."""
    if is_healthy(verdict.verdict):
        return ()
    rates = [row.measured.busbw_GBps for measured in verdict.measured for row in measured.rows]
    names = tuple(finding.name for finding in verdict.findings)
    return ask(Question(verdict.contents.text, names, max(rates, default=None)))


def answer_alone(where: str, error: NothingToJudgeError) -> FileVerdict | None:
    """Return a verdict on a text that has nothing to judge; its finding is the first answer.

    `where` names the text, `error` says why there is nothing to judge. Return None if no extra has
    an answer.
    """
    answers = ask(Question(error.text))
    if not answers:
        return None
    first = answers[0]
    return FileVerdict(
        FileContents(where, "text with nothing to compare with a bound"),
        JudgedMachine(None, "none is needed, as nothing is compared", ""),
        findings=[FileFinding(first.symptom, first.because, first.do, first.line)],
        notes=[_say_why(where, error)],
        answers=answers,
    )


def _say_why(where: str, error: NothingToJudgeError) -> str:
    """Return why there is nothing to judge, without what could be given in place of the text."""
    text = str(error).removeprefix(f"{where}: ").removeprefix(f"{where}, ")
    return text.partition("; expected")[0]
