"""Small changes of meaning: for each function of a module, the places and what may stand there.

Only code is changed: no text, no message, no annotation. A change keeps the number of lines.
"""

from __future__ import annotations

import ast
import copy
import itertools
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

NOT_MEANT = {"__repr__", "__str__", "_repr_html_", "_repr_mimebundle_"}
# What their arguments say is text.
TALK = {"warn", "print", "log", "debug", "info", "warning", "join", "format", "note", "step"}
SAME_SWAPPED = {
    "min", "max", "isinstance", "issubclass", "getattr", "cast", "isclose", "gcd", "suppress",
    "hypot", "maximum", "minimum", "array_equal",
    "merge",  # of a DisjointSet
}  # fmt: skip
COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE), ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
DEFAULTS = {
    "bool": ("True", "False"), "int": ("0",), "float": ("0.0",), "list": ("[]",), "dict": ("{}",),
    "tuple": ("()",), "set": ("set()",), "frozenset": ("frozenset()",),
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change: the bytes ``start`` to ``end`` of a file are replaced by ``text``."""

    path: str
    line: int
    statement: int
    function: str
    kind: str
    start: int
    end: int
    text: str
    before: str
    after: str

    def applied(self, source: bytes) -> bytes:
        """Return the changed source."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def mutants_by_function(root: Path, path: str) -> dict[str, dict[str, list[Mutant]]]:
    """Return all mutants of a file by the function and the kind of change."""
    source = (root / path).read_bytes()
    starts = [0, *itertools.accumulate(map(len, source.splitlines(keepends=True)))]
    by_function: dict[str, dict[str, list[Mutant]]] = {}
    for name, function in _functions(ast.parse(source)):
        by_kind: dict[str, list[Mutant]] = defaultdict(list)
        for kind, statement, node, replacement in _changes(function):
            if replacement == ast.unparse(node):
                continue
            by_kind[kind].append(
                _mutant(source, starts, path, name, kind, statement, node, replacement)
            )
        if by_kind:
            by_function[f"{path}:{name}"] = dict(by_kind)
    return by_function


def sample(root: Path, paths: list[str], n: int, seed: int) -> list[Mutant]:
    """Return mutants of n random functions: the kind of change is drawn first, then the place."""
    functions = {k: v for path in paths for k, v in mutants_by_function(root, path).items()}
    chance = random.Random(seed)
    drawn = []
    for name in chance.sample(sorted(functions), min(n, len(functions))):
        kind = chance.choice(sorted(functions[name]))
        drawn.append(chance.choice(functions[name][kind]))
    return drawn


def _functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Each function and method; a nested one belongs to the one around it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef) and node.name not in NOT_MEANT:
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")


def _mutant(
    source: bytes, starts: list[int], path: str, function: str, kind: str,
    statement: ast.stmt, node: ast.expr | ast.stmt, replacement: str,
) -> Mutant:  # fmt: skip
    start = starts[node.lineno - 1] + node.col_offset
    end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
    blank = "\n" * source[start:end].count(b"\n")
    if isinstance(node, ast.expr):
        text = f"({replacement}{blank})"
    else:
        text = f"{replacement}{blank}"
    if blank:
        before, after = source[start:end].decode(), replacement
    else:
        begin, stop = source.rfind(b"\n", 0, start) + 1, source.find(b"\n", end)
        before = source[begin:stop].decode()
        after = source[begin:start].decode() + replacement + source[end:stop].decode()
    return Mutant(
        path, node.lineno, statement.lineno, function, kind, start, end, text,
        " ".join(before.split()), " ".join(after.split()),
    )  # fmt: skip


def _changes(
    function: ast.FunctionDef,
) -> Iterator[tuple[str, ast.stmt, ast.expr | ast.stmt, str]]:
    """Kind, statement, node and replacement of each change of a function."""
    body = function.body[bool(ast.get_docstring(function)) :]
    for statement, node in _nodes(body):
        for kind, replacement in _replacements(node, function):
            yield kind, statement, node, replacement
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            yield "condition", statement, node.test, f"not ({ast.unparse(node.test)})"
        if isinstance(node, ast.If) and not node.orelse and len(node.body) == 1 and isinstance(
            node.body[0], ast.Raise | ast.Return | ast.Continue | ast.Break
        ):  # fmt: skip
            yield "guard", statement, node.test, "False"
        if isinstance(node, ast.comprehension):
            for test in node.ifs:
                yield "condition", statement, test, f"not ({ast.unparse(test)})"
        if isinstance(node, ast.Slice):
            for bound in (node.lower, node.upper):
                if bound is not None:
                    for change in ("+ 1", "- 1"):
                        yield "slice", statement, bound, f"{ast.unparse(bound)} {change}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in NAMES:
            yield node.func.id, statement, node.func, NAMES[node.func.id]
        if isinstance(node, ast.Return) and node.value is not None:
            for default in _defaults(function.returns):
                yield "default", statement, node.value, default


def _nodes(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, ast.AST]]:
    """All nodes that are no text, each with the statement around it."""
    for statement in body:
        yield from _nodes_of(statement, statement)


def _nodes_of(node: ast.AST, statement: ast.stmt) -> Iterator[tuple[ast.stmt, ast.AST]]:
    if isinstance(node, ast.JoinedStr | ast.Assert | ast.Import | ast.ImportFrom | ast.ClassDef):
        return
    if isinstance(node, ast.stmt):
        statement = node
    yield statement, node
    if isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and _talks(node)):
        return
    for field, value in ast.iter_fields(node):
        if field in {"annotation", "returns", "decorator_list", "args"} and not isinstance(
            node, ast.Call
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_asserted(child):
                yield from _nodes_of(child, statement)


def _is_asserted(node: ast.AST) -> bool:
    """Tell ``strict=True``, which says of a zip, as an assertion would, what is always so."""
    return isinstance(node, ast.keyword) and ast.unparse(node) == "strict=True"


def _talks(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    name = call.func.id if isinstance(call.func, ast.Name) else name
    return name in TALK or name.endswith(("Error", "Warning"))


def _replacements(node: ast.AST, function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    match node:
        case ast.Compare():
            for at, operator in enumerate(node.ops):
                for other in COMPARISONS[type(operator)]:
                    changed = copy.deepcopy(node)
                    changed.ops[at] = other()
                    yield "comparison", ast.unparse(changed)
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "boolean", ast.unparse(ast.BoolOp(other, node.values))
            for value in node.values:
                yield "boolean", ast.unparse(value)
        case ast.UnaryOp(op=ast.Not()):
            yield "boolean", ast.unparse(node.operand)
        case ast.UnaryOp(op=ast.USub()):
            yield "arithmetic", ast.unparse(node.operand)
        case ast.BinOp() if type(node.op) in OPERATORS and not _is_text(node):
            changed = ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)
            yield "arithmetic", ast.unparse(changed)
        case ast.AugAssign() if type(node.op) in OPERATORS and not _is_text(node.value):
            changed = ast.AugAssign(node.target, OPERATORS[type(node.op)](), node.value)
            yield "arithmetic", ast.unparse(changed)
        case ast.Constant(value=bool()):
            yield "constant", str(not node.value)
        case ast.Constant(value=int() | float()):
            for value in {node.value + 1, node.value - 1, node.value * 2} - {node.value}:
                yield "constant", repr(value)
        case ast.IfExp():
            yield "branches", ast.unparse(ast.IfExp(node.test, node.orelse, node.body))
        case ast.Raise(exc=ast.Name(id="NotImplementedError")):
            pass  # of a method that each subclass has
        case ast.Raise():
            yield "raise", "pass"
        case ast.Expr(value=ast.Call() as call) if not _talks(call):
            yield "statement", "pass"
        case ast.Expr(value=ast.Yield() | ast.YieldFrom()):
            yield "statement", "pass"
        case ast.Call(args=[first, second, *_]) if not _talks(node):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            starred = any(isinstance(argument, ast.Starred) for argument in node.args[:2])
            if name not in SAME_SWAPPED and not starred and not isinstance(first, ast.Constant):
                changed = copy.copy(node)
                changed.args = [second, first, *node.args[2:]]
                yield "swap", ast.unparse(changed)


def _is_text(node: ast.AST) -> bool:
    return any(
        isinstance(part, ast.JoinedStr)
        or (isinstance(part, ast.Constant) and isinstance(part.value, str | bytes))
        for part in ast.walk(node)
    )


def _defaults(returns: ast.expr | None) -> tuple[str, ...]:
    """What a function of this annotation may return without any work; nothing for text."""
    written = ast.unparse(returns) if returns is not None else ""
    if written.endswith("| None"):
        return ("None",)
    return DEFAULTS.get(written.split("[")[0], ())
