"""The reference of the API: a heading for each name, whose docstring the site shows there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import yaml
from goldens.signatures import INSIDE, find_definition, list_members

import topoplan

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")


def test_the_page_has_a_heading_for_each_public_name() -> None:
    assert sorted(re.findall(r"^### (\w+)$", PAGE, re.MULTILINE)) == sorted(topoplan.__all__)


def test_every_public_name_has_a_docstring() -> None:
    assert [name for name in topoplan.__all__ if not find_definition(name)[1]] == []


def test_the_examples_in_docstrings_are_python_that_names_what_is_there() -> None:
    docs = {"topoplan": topoplan.__doc__ or ""}
    for name in topoplan.__all__:
        node, docs[name] = find_definition(name)
        if isinstance(node, ast.ClassDef):
            docs |= {f"{name}.{x.name}": ast.get_docstring(x) or "" for x in list_members(node)}
    blocks = {
        name: "\n".join(line[4:] for line in text.splitlines() if line.startswith("    "))
        for name, text in docs.items()
    }
    shown = {name: ast.parse(block) for name, block in blocks.items() if block}
    used = {
        node.attr
        for tree in shown.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "topoplan"
    }
    assert {"topoplan", "reshard"} <= set(shown) and used <= set(topoplan.__all__)


def test_the_site_leaves_out_the_members_that_only_topoplan_needs() -> None:
    options = next(
        plugin["mkdocstrings"]["handlers"]["python"]["options"]
        for plugin in yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["plugins"]
        if isinstance(plugin, dict)
    )
    left_out = re.compile(options["filters"][-1].removeprefix("!"))
    members = {
        member.name
        for name in topoplan.__all__
        if isinstance(node := find_definition(name)[0], ast.ClassDef)
        for member in list_members(node)
    }
    assert {x for x in members if left_out.search(x)} == {x for xs in INSIDE.values() for x in xs}
