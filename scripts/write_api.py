"""Write docs/api.md, the reference of the Python API, from docstrings of public names: `make
api`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path

import topoplan

ROOT = Path(__file__).resolve().parents[1]
QUOTE = "'"
PAGE = ROOT / "docs/api.md"
# Complete programs on the page: files in examples/, with their headings.
PROGRAMS = {
    "plan_a_machine.py": "Plan for a machine described by a text file, and save the plan",
    "run_a_collective.py": "Run a collective through a plan",
    "move_weights.py": "Move weights from one mesh to another",
    "own_strategy.py": "Write your own strategy",
}
SECTIONS = {
    "Machines": ("probe", "load", "Topology", "Device", "Link", "InNetwork"),
    "Plans": (
        *("synthesize", "Plan", "Entry", "TreeLimits", "Bound", "Cost"),
        *("pareto", "ParetoFront", "ParetoRow"),
    ),
    "Several groups at once": (
        *("synthesize_joint", "mesh_groups", "JointPlan", "GroupPlan", "JointCall", "JointBound"),
    ),
    "Where ranks go": ("place", "Placement", "Traffic", "Step", "PlaceBound", "device_mesh"),
    "Collectives and schedules": (
        "Collective",
        "CollectiveName",
        "Chunk",
        "Schedule",
        "Transfer",
        "verify",
    ),
    "Running": (
        "Communicator",
        "Policy",
        "ChooseMode",
        "Choice",
        "GroupMaker",
        "ddp_hook",
        "backend_options",
        "Plans",
        "summary",
        "Summary",
        "GroupSummary",
        "SizeSummary",
        "join_mpi",
        "nccl_graph",
        "new_group",
        "reconfigure",
        "reconfigure_handle",
        "reshard",
        "Reshard",
        "reshard_state_dict",
    ),
    "Your own strategies": ("strategy", "Request", "Send", "build_schedule"),
    "Types in signatures": ("DdpHook", "Effort", "Job", "Note", "Router", "Transfers", "Transport"),
    "Errors": (
        "TopoplanError",
        "InputError",
        "InfeasibleError",
        "TimeLimitError",
        "VerificationError",
        "PlanMismatchError",
        "StrategyError",
        "ExecutionError",
    ),
}
INTRODUCTIONS = {
    "Your own strategies": """\
A strategy is a function from a `Request` to schedules. `@topoplan.strategy("mine")` registers it in one process. An entry
point registers it wherever its package is installed, also for `topo-synth --strategy mine` and the backend:

```toml
[project.entry-points."topoplan.strategies"]
mine = "package.module:build"
```

Its schedules are verified and costed like the built-in ones, and carry its name. If the strategy fails, the message is one
line with its name: an error if you asked for it by name; in `auto` a warning in the log `topoplan`, and planning continues
without it. The backend caches plans, so empty its cache folder after you install a strategy that it should use.
""",
    "Types in signatures": """\
Programs get objects of these types and pass them on. Their attributes and methods are not promised.
""",
    "Errors": """\
Every error that topoplan raises on purpose is a `TopoplanError` with a one-line message. `exit_code` is the exit code of a
command that ends with it: 1 failed, 2 bad input, 3 infeasible, 4 out of time, 5 a plan or schedule that fails verification.
""",
}
# Public members that only topoplan itself needs, and that the page leaves out.
INSIDE = {
    "Bound": ("from_fields",),
    "Communicator": ("prepare", "find_again"),
    "Collective": ("problem_with",),
    "TreeLimits": ("allows",),
    "Schedule": ("from_fields", "tick"),
    "Topology": ("for_plans",),
}
HEAD = """\
# The Python API

`scripts/write_api.py` generates this page from the docstrings; to change it, edit those and run `make api`.

`import topoplan` imports nothing heavy: each name's module is imported when the name is first used, and torch only for the
names under [Running](#running). Sizes are bytes, or, where noted, text such as `"64M"`; bandwidths are in GB/s (1e9 bytes a
second), as fractions. Objects print as one line; `print(x.describe())` shows the tables that the commands print, and in a
notebook topologies, plans, schedules and fronts show as pictures and tables. The package is typed (`py.typed`; programs pass `mypy --strict`).

## Compatibility

Versions are semantic. Covered are the names on this page, their parameters and results, the attributes and methods listed
here, and the files that they write. Not covered are names that begin with an underscore, and everything imported from
`topoplan.topo`, `topoplan.synth`, `topoplan.runtime` and `topoplan.cli`: these are internal and may change in any version.

- Until 1.0 a minor version (0.1 to 0.2) may change the covered interface; [CHANGELOG.md](../CHANGELOG.md) then says what to
  use instead, and old names warn (`DeprecationWarning`) for one version. A patch version (0.1.0 to 0.1.1) changes nothing.
  From 1.0 on only a major version does.
- New names, parameters with defaults, strategies, presets and fields of files may come with any minor version.
- Plans and topologies are files with a `version`. A file of an older version is read, or refused with a one-line error.
- The wording of messages, of `repr` and of `describe` may change, and so may the schedules in a plan. The same request
  gives the same plan with the same version of topoplan and the same strategies installed; a newer version may find a better
  plan.
- Errors keep their classes and exit codes.
"""


def text() -> str:
    """Return the page."""
    parts = [HEAD, "## Three programs\n"]
    for file, title in PROGRAMS.items():
        code = (ROOT / "examples" / file).read_text(encoding="utf-8").rstrip()
        parts.append(f"### {title}\n\n`examples/{file}`:\n\n```python\n{code}\n```\n")
    listed = {name for names in SECTIONS.values() for name in names}
    others = tuple(name for name in topoplan.__all__ if name not in listed)
    for title, names in {**SECTIONS, **({"Other names": others} if others else {})}.items():
        parts.append(
            "\n".join(
                [f"## {title}\n", *([INTRODUCTIONS[title]] if title in INTRODUCTIONS else [])]
            )
        )
        parts += [_describe(name) for name in names]
    return "\n".join(parts)


def list_signatures() -> dict[str, str]:
    """Return the signatures of the public names and of their members, such as `Plan.save`."""
    signatures: dict[str, str] = {}
    for name in topoplan.__all__:
        node, file = find_definition(name)[0], _find_file(name)
        if isinstance(node, ast.ClassDef):
            members = [x for x in _list_members(node) if x.name not in INSIDE.get(name, ())]
            heads = {f"{name}.{x.name}": _describe_head(x, file) for x in members}
            signatures |= {name: _heading(name, node), **heads}
        elif isinstance(node, ast.FunctionDef):
            signatures[name] = _signature(node, file)
        else:
            signatures[name] = ast.unparse(node)
    return {name: " ".join(text.split()) for name, text in signatures.items()}


def _describe(name: str) -> str:
    """Return what the page says of one public name."""
    node, doc = find_definition(name)
    if isinstance(node, ast.FunctionDef):
        decorators = "".join(f"@{ast.unparse(decorator)}\n" for decorator in node.decorator_list)
        return f"### {name}\n\n{_code(decorators + _signature(node, _find_file(name)))}\n\n{_prose(doc)}\n"
    if isinstance(node, ast.ClassDef):
        return _describe_class(name, node, doc)
    return f"### {name}\n\n{_code(ast.unparse(node))}\n\n{_prose(doc)}\n"


def find_definition(name: str) -> tuple[ast.stmt, str]:
    """Return where a public name is defined, and its docstring."""
    file = _find_file(name)
    body = _read(file)
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            return node, ast.get_docstring(node) or ""
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return node, _read_comment_above(file, node.lineno)
    raise SystemExit(f"{name} is not defined in {file}")


def _read_comment_above(file: Path, line: int) -> str:
    """Return the comment that ends on the line before `line` (from 1), without its marks."""
    lines = file.read_text(encoding="utf-8").splitlines()[: line - 1]
    comment = list(takewhile(lambda text: text.startswith("#"), reversed(lines)))
    return "\n".join(text.removeprefix("#").strip() for text in reversed(comment))


def _find_file(name: str) -> Path:
    """Return the file in which a public name is defined."""
    return ROOT / (topoplan._list_homes()[name].replace(".", "/") + ".py")


@cache
def _read(file: Path) -> list[ast.stmt]:
    """Return the statements of a module."""
    return ast.parse(file.read_text(encoding="utf-8")).body


def _describe_class(name: str, node: ast.ClassDef, doc: str) -> str:
    """Return a class, with its fields or what makes one, and its public methods and properties."""
    if name in SECTIONS["Types in signatures"]:
        return f"### {name}\n\n{_prose(doc)}\n"
    head = _code(_heading(name, node))
    members = [
        _describe_member(m, _find_file(name))
        for m in _list_members(node)
        if m.name not in INSIDE.get(name, ())
    ]
    return "\n".join([f"### {name}\n", head, "", _prose(doc), "", *members])


def _heading(name: str, node: ast.ClassDef) -> str:
    """Return what makes one of a class: the fields of a dataclass, the parameters of another."""
    if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        fields = [field for field in node.body if isinstance(field, ast.AnnAssign)]
        return _lay_out(name, [_describe_field(field, _find_file(name)) for field in fields], "")
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            return _signature(member, _find_file(name), name)
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    return f"class {name}({bases})"


def _describe_field(node: ast.AnnAssign, file: Path) -> str:
    """Return a field of a dataclass with its type and default."""
    default = node.value
    if isinstance(default, ast.Call) and ast.unparse(default.func) == "field":
        made_by = {word.arg: word.value for word in default.keywords}.get("default_factory")
        default = (
            None
            if made_by is None
            else ast.Constant(...)
            if isinstance(made_by, ast.Lambda)
            else _call(made_by)
        )
    shown = "" if default is None else f" = {_describe_default(default, file)}"
    return f"{ast.unparse(node.target)}: {ast.unparse(node.annotation)}{shown}"


def _call(made_by: ast.expr) -> ast.expr:
    """Return the call of a function without arguments; `{}` and `[]` as they are written."""
    return {"dict": ast.Dict([], []), "list": ast.List([])}.get(
        ast.unparse(made_by), ast.Call(made_by, [], [])
    )


def _list_members(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    """Yield the public methods and properties of a class that have a docstring."""
    for member in node.body:
        if (
            isinstance(member, ast.FunctionDef)
            and not member.name.startswith("_")
            and ast.get_docstring(member)
        ):
            yield member


def _describe_member(node: ast.FunctionDef, file: Path) -> str:
    """Return a method or property as an item of a list."""
    doc = "\n".join(_prose(ast.get_docstring(node) or "").splitlines())
    text = "\n".join(f"  {line}".rstrip() for line in doc.splitlines())
    return f"- `{_describe_head(node, file)}`\n\n{text}\n"


def _describe_head(node: ast.FunctionDef, file: Path) -> str:
    """Return a method's signature, or a property with its type, in one line."""
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    if decorators & {"property", "cached_property"}:
        return f"{node.name}: {ast.unparse(node.returns) if node.returns else 'object'}"
    return " ".join(_signature(node, file).split()).replace("( ", "(").replace(", )", ")")


def _signature(node: ast.FunctionDef, file: Path, name: str | None = None) -> str:
    """Return a function's name, parameters and result; without `self` and `cls`."""
    args = node.args
    positional = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(positional) - len(args.defaults)) + [*args.defaults]
    shown = [
        _parameter(a, d, file)
        for a, d in zip(positional, defaults, strict=True)
        if a.arg not in ("self", "cls")
    ]
    if args.vararg:
        shown.append(f"*{args.vararg.arg}")
    elif args.kwonlyargs:
        shown.append("*")
    shown += [
        _parameter(a, d, file) for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True)
    ]
    result = (
        f" -> {ast.unparse(node.returns).strip(QUOTE)}"
        if node.returns and node.name != "__init__"
        else ""
    )
    return _lay_out(name or node.name, shown, result)


def _parameter(arg: ast.arg, default: ast.expr | None, file: Path) -> str:
    """Return a parameter with its type and default."""
    annotation = f": {ast.unparse(arg.annotation)}" if arg.annotation else ""
    return (
        arg.arg
        + annotation
        + (f" = {_describe_default(default, file)}" if default is not None else "")
    )


def _describe_default(default: ast.expr, file: Path) -> str:
    """Return a default; of a name that its module gives a value, or imports from ours, the
    value.
    """
    if isinstance(default, ast.Name):
        for node in _read(file):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == default.id:
                return ast.unparse(node.value)
            if (
                isinstance(node, ast.ImportFrom)
                and node.level
                and default.id in {alias.name for alias in node.names}
            ):
                home = file.parents[node.level - 1] / f"{(node.module or '').replace('.', '/')}.py"
                return _describe_default(default, home)
    return ast.unparse(default)


def _lay_out(name: str, parameters: list[str], result: str) -> str:
    """Return a call in one line, or a parameter a line where that would be long."""
    line = f"{name}({', '.join(parameters)}){result}"
    if len(line) <= 100:
        return line
    return "\n".join([f"{name}(", *(f"    {parameter}," for parameter in parameters), f"){result}"])


def _code(text: str) -> str:
    """Return text as a block of Python."""
    return f"```python\n{text}\n```"


def _prose(doc: str) -> str:
    """Return a docstring as Markdown: indented lines become a block of code."""
    lines: list[str] = []
    inside = False
    for line in doc.splitlines():
        indented = line.startswith("    ")
        if indented and not inside:
            lines += [] if not lines or not lines[-1] else [""]
            lines.append("```python")
        elif inside and line and not indented:
            lines.append("```")
        inside = indented or (inside and not line)
        lines.append(line.removeprefix("    ") if inside else line)
    return "\n".join([*lines, "```"] if inside else lines)


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
    print(PAGE)
