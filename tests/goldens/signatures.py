"""The signatures of the public names and of their members, as the sources have them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import topoplan

ROOT = Path(__file__).resolve().parents[2]
QUOTE = "'"
# Public members that only topoplan itself needs; mkdocs.yml leaves them out, too.
INSIDE = {
    "Bound": ("from_fields",),
    "Collective": ("problem_with",),
    "TreeLimits": ("allows",),
    "Schedule": ("from_fields", "tick"),
    "Topology": ("for_plans",),
}


def list_signatures() -> dict[str, str]:
    """Return the signatures by name, members as `Plan.save`."""
    signatures: dict[str, str] = {}
    for name in topoplan.__all__:
        node, file = find_definition(name)[0], _find_file(name)
        if isinstance(node, ast.ClassDef):
            members = [x for x in list_members(node) if x.name not in INSIDE.get(name, ())]
            heads = {f"{name}.{x.name}": _describe_head(x, file) for x in members}
            signatures |= {name: _heading(name, node), **heads}
        elif isinstance(node, ast.FunctionDef):
            signatures[name] = _signature(node, file)
        else:
            signatures[name] = ast.unparse(node)
    return {name: " ".join(text.split()) for name, text in signatures.items()}


def find_definition(name: str) -> tuple[ast.stmt, str]:
    """Return where a public name is defined, and its docstring: of a type, the text below it."""
    file = _find_file(name)
    for node, after in pairwise([*_read(file), ast.Pass()]):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            return node, ast.get_docstring(node) or ""
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            text = after.value if isinstance(after, ast.Expr) else None
            return node, str(text.value) if isinstance(text, ast.Constant) else ""
    raise SystemExit(f"{name} is not defined in {file}")


def _find_file(name: str) -> Path:
    """Return the file in which a public name is defined."""
    return ROOT / (topoplan._list_homes()[name].replace(".", "/") + ".py")


@cache
def _read(file: Path) -> list[ast.stmt]:
    """Return the statements of a module."""
    return ast.parse(file.read_text(encoding="utf-8")).body


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


def list_members(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    """Yield the public methods and properties of a class that have a docstring."""
    for member in node.body:
        if (
            isinstance(member, ast.FunctionDef)
            and not member.name.startswith("_")
            and ast.get_docstring(member)
        ):
            yield member


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
