"""Facts' subjects and keys: product code takes them from topo/facts/keys.py alone, and
the site lists every one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from fact_keys import DECLARED, find_pattern

from topoplan.topo.facts import Facts, load_facts
from topoplan.topo.facts import keys as fact_keys
from topoplan.topo.formats import smi
from topoplan.topo.probe.join import probe_local

ROOT = Path(__file__).resolve().parents[2]
LOOK_UPS = (
    "get_text",
    "get_number",
    "get_texts",
    "join_texts",
    "get_source",
    "get_reason",
    "Fact",
    "format_fact",
    "explain_missing",
    "ask",
)
# Like LOOK_UPS, with a root and a path before the subject and the key.
READS = ("read_fact",)
# What is in every source that calls one of them, or declares a key; to parse all others takes
# seconds.
NAMED = re.compile(rf"\b({'|'.join((*LOOK_UPS, *READS, 'Key'))})\b")


@cache  # every test asks
def calls() -> list[tuple[str, ast.Call]]:
    """Every call in the sources of the product that may look facts up or declare keys, with the
    place where it stands; not those of the file that declares.
    """
    return [
        (f"{path.relative_to(ROOT)}:{node.lineno}", node)
        for folder in ("topo", "synth", "runtime", "cli", "scripts")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.parts[-2:] != ("facts", "keys.py")
        and NAMED.search(text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
    ]


def look_ups() -> Iterator[tuple[str, ast.expr, ast.expr]]:
    """The expressions for subject and key of each call that looks a fact up or makes one."""
    for place, call in calls():
        name = (
            call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        )
        first = 0 if name in LOOK_UPS else 2 if name in READS else None
        if first is not None and len(call.args) >= first + 2:
            yield place, call.args[first], call.args[first + 1]


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def test_no_subject_or_key_is_spelled_where_it_is_used() -> None:
    seen = list(look_ups())
    assert len(seen) > 150
    assert [place for place, subject, key in seen if is_text(subject) or is_text(key)] == []


def test_keys_are_declared_in_one_file_and_those_of_an_extra_in_one_of_its_own() -> None:
    declared = [place for place, call in calls() if is_key(call.func)]
    assert [x for x in declared if not re.match(r"topo/extras/\w+/facts\.py:", x)] == []


def is_key(function: ast.expr) -> bool:
    inner = function.value if isinstance(function, ast.Subscript) else function
    return ast.unparse(inner) in ("Key", "keys.Key", "fact_keys.Key")


def test_a_key_is_asked_of_the_subjects_that_have_it() -> None:
    examples = {
        name: find_pattern(make(0, 1) if make.__code__.co_argcount == 2 else make(0))
        for name, make in vars(fact_keys).items()
        if name.endswith("_subject")
    }
    checked = 0
    for place, subject, key in look_ups():
        pattern = (
            examples.get(subject.func.id)
            if isinstance(subject, ast.Call) and hasattr(subject.func, "id")
            else None
        )
        if (
            pattern is not None
            and isinstance(key, ast.Attribute)
            and ast.unparse(key.value) == "keys"
        ):
            checked += 1
            assert getattr(fact_keys, key.attr).subject == pattern, place
    assert checked > 40


def test_no_key_is_declared_twice() -> None:
    names = [name for name, value in vars(fact_keys).items() if isinstance(value, fact_keys.Key)]
    assert len(DECLARED) == len(names)


def undeclared(facts: Facts) -> set[tuple[str, str]]:
    return {
        (f.subject, f.key) for f in facts.items if (find_pattern(f.subject), f.key) not in DECLARED
    }


def test_all_facts_of_this_machine_are_declared() -> None:
    facts = load_facts(probe_local().extra, "local")
    assert facts.items and undeclared(facts) == set()


def test_all_facts_of_a_matrix_are_declared() -> None:
    text = (
        "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\t0-7\t0\nGPU1\tNV4\t X "
        "\t0-7\t0\n"
    )
    facts = load_facts(smi.read(text, "matrix").extra, "matrix")
    assert facts.items and undeclared(facts) == set()


@pytest.mark.parametrize(
    "subject", ["gpu", "gpu/", "gpu/0/nvlink", "gpu/0/other/1", "rdma", "", "gpu/0/p2p/1/2"]
)
def test_a_text_that_is_no_subject_has_no_pattern(subject: str) -> None:
    assert find_pattern(subject) is None


def test_the_site_lists_every_declared_key() -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed (extra docs)")
    table = import_module("site_hooks").write_keys("")
    for (subject, name), key in DECLARED.items():
        assert f"| `{subject}` | `{name}` | {key.meaning} |" in table and key.meaning
