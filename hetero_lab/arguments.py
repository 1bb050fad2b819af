"""The kinds and bounds of arguments, checked at every public function from its annotations.

What an annotation says is checked before the function runs, so that the wrong kind of thing is an
ArgumentError that names the argument, and not an AttributeError somewhere inside. Numbers whose
meaning is in their name have bounds here. Annotations are read at the first call, and no package
is imported for them: nothing can be of a type whose package has not been imported.
"""

from __future__ import annotations

import ast
import builtins
import collections.abc as abc
import contextlib
import functools
import inspect
import os
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, TypeVar

from hetero_lab.errors import ArgumentError, HeteroLabError, did_you_mean, shorten

_F = TypeVar("_F", bound=Callable[..., Any])
# The largest number allowed, by name, since one name means the same everywhere. Larger ones would
# overflow, or never end.
_MOST = {
    "iterations": 10**9,
    "warmup": 10**9,
    "requests": 10**4,
    "turns": 10**6,
    "group_size": 10**4,
    "seed": 2**63 - 1,
    "subset_size": 10**9,
    "validate": 10**6,
}
_MOST_SECONDS = 1e9
_FOR_CHECKERS = re.compile(r"^if (?:\w+\.)?TYPE_CHECKING:\n((?:[ \t]+.*\n|\n)+)", re.M)
# These have a better check inside, which knows the samples, devices or ops. Its error comes first.
_KNOWN_INSIDE = {
    "model", "source", "shapes", "placement", "placements", "name", "devices",
    "device", "text", "ops", "types", "patterns",
    "budget_s", "pin", "memory_limit", "calibration", "data", "profile",
    "profiles", "results", "result", "sweep",
    "compile_properties", "executor", "grid", "inputs", "mean",
    "metric", "priorities", "scale", "top",
}  # fmt: skip
# How to get an object of a kind: the way out that an error names.
_WAYS = {
    "Core": "openvino.Core() is one; leave it out to share one",
    "CostModel": "hetero_lab.calibrate(model, devices) returns one",
    "Dataset": "hetero_lab.dataset('digits') returns one",
    "Difference": "hetero_lab.explain(model, before, after) returns one",
    "Profile": "hetero_lab.profile(model, placement) returns one",
    "Recovered": "hetero_lab.recover_accuracy(…) returns one",
    "SchedulePlan": "hetero_lab.plan(model, costs, executor='parallel') returns one",
    "Scenario": "hetero_lab.Scenario(prompt_tokens=…, new_tokens=…) is one",
    "Sweep": "hetero_lab.sweep(model, placements) returns one",
    "KnownFaults": "hetero_lab.find_wrong(model, placement) returns one",
    "Wrong": "hetero_lab.find_wrong(model, placement) returns one",
    "SweepControl": "hetero_lab.types.SweepControl() is one",
    "Affinity": "hetero_lab.Affinity.automatic(model, 'HETERO:GPU,CPU') returns one",
    "OpGraph": "hetero_lab.compile(model, placement).prepared.graph is one",
    "Partition": "hetero_lab.partition(model, placement) returns one",
}

_EXAMPLES = {
    "device_properties": "{'CPU': {'INFERENCE_PRECISION_HINT': 'f32'}}",
    "properties": "{'INFERENCE_PRECISION_HINT': 'f32'}",
    "compile_properties": "{'NUM_STREAMS': 1}",
    "ops": "{'conv1': 'CPU'}",
    "types": "{'MatMul': 'CPU'}",
    "patterns": "{'^block3/': 'CPU'}",
    "supported": "{'Softmax'}",
    "unsupported": "{'Softmax'}",
    "ignored": "['Softmax', '^head_']",
}


def checked(function: _F) -> _F:
    """Return a function that checks the kinds and bounds of its arguments first.

    Of a class, its constructor does. Public functions are wrapped at the door
    (:mod:`hetero_lab.facade`); methods and constructors that users call wear it as a decorator,
    so that a class is one and the same however it was reached.
    """
    if isinstance(function, type):
        setattr(function, "__init__", checked(vars(function)["__init__"]))  # noqa: B010
        return typing.cast(_F, function)
    names = list(inspect.signature(function).parameters)

    @functools.cache
    def hints() -> dict[str, Any]:
        return hints_of(function)

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        known = hints()
        given = {**dict(zip(names, args, strict=False)), **options}
        for name, value in given.items():
            _check_most(name, value)
            if name in known and name not in _KNOWN_INSIDE:
                _check(name, value, known[name])
        try:
            return function(*args, **options)
        except (AttributeError, TypeError, ValueError, KeyError, OverflowError) as error:
            if not isinstance(error, HeteroLabError):
                for name in options.keys() - {*names}:
                    if isinstance(error, TypeError) and f"keyword argument '{name}'" in str(error):
                        near = did_you_mean(name, names).replace("'?", "='?")
                        near = near or f" Arguments: {', '.join(names)}."
                        told = f"{function.__name__} has no argument {name}=.{near}"
                        raise ArgumentError(told) from None
                for name in _KNOWN_INSIDE & given.keys() & known.keys():
                    _check(name, given[name], known[name])
            raise

    return typing.cast(_F, call)


def check_whole(name: str, value: object, *, least: int) -> int:
    """Return a whole number of at least ``least``; raise ArgumentError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ArgumentError(f"{name}= is a whole number of at least {least}, not {value!r}.")
    return value


def _check(name: str, value: Any, hint: Any) -> None:
    if not fits(value, hint):
        way = next((f" {_WAYS[kind]}." for kind in _kinds(hint) if kind in _WAYS), "")
        way += f" For instance {_EXAMPLES[name]}." if name in _EXAMPLES else ""
        kind, shown = type(value).__name__, repr(value)
        # The repr of a result is long, so its kind is named instead.
        given = f"{shown} ({kind})" if len(shown) <= 80 and shown.isprintable() else kind
        raise ArgumentError(f"{name}= is {_described(hint)}, not {given}.{way}")


def _check_most(name: str, value: Any) -> None:
    most = _MOST_SECONDS if name.endswith("_s") else _MOST.get(name)
    if most is not None and isinstance(value, int | float) and not value <= most:
        raise ArgumentError(f"{name}= is at most {most:,.0f}, not {shorten(repr(value), 40)}.")


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value fits a resolved annotation."""
    if hint is Any or isinstance(hint, TypeVar):
        return True
    if hint is None or hint is type(None):
        return value is None
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in inner)
    if origin is Literal:
        return any(value is one or (type(value) is type(one) and value == one) for one in inner)
    if origin is abc.Callable or hint is abc.Callable:
        return callable(value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if origin is None:
        is_protocol = getattr(hint, "_is_protocol", False)
        return is_protocol or not isinstance(hint, type) or isinstance(value, hint)
    if not isinstance(origin, type) or not isinstance(value, origin):
        return not isinstance(origin, type)
    return all(fits(one, of) for one, of in _telling(_elements(value, origin, inner)))


def _telling(elements: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    """Yield one element of each type where a plain class is asked for: an affinity has many ops."""
    seen: set[tuple[type, type]] = set()
    for one, of in elements:
        if type(of) is type:
            if (type(one), of) in seen:
                continue
            seen.add((type(one), of))
        yield one, of


def _elements(value: Any, origin: type, inner: tuple[Any, ...]) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, str | bytes):
        # A string is a sequence of strings, but is never meant as one.
        yield value, None
    elif issubclass(origin, abc.Mapping):
        for key, one in value.items():
            yield key, inner[0]
            yield one, inner[1]
    elif issubclass(origin, tuple) and not (len(inner) == 2 and inner[1] is Ellipsis):
        yield from zip(value, inner, strict=False)
    elif inner and inner[0] is not Any and isinstance(value, abc.Collection):
        yield from ((one, inner[0]) for one in value)


_WORDS = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    os.PathLike: "a path",
    type(None): "None",
}


def _described(hint: Any) -> str:
    """Return an annotation in words."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        parts = list(dict.fromkeys(_described(one) for one in inner))
        return f"{', '.join(parts[:-1])} or {parts[-1]}" if len(parts) > 1 else parts[0]
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if hint is None:
        return "None"
    base = origin or hint
    if base in _WORDS:
        return _WORDS[base]
    if base is abc.Callable:
        return "a function"
    if isinstance(base, type) and issubclass(base, abc.Mapping) and inner:
        return f"a mapping of {_described(inner[0])} to {_described(inner[1])}"
    if isinstance(base, type) and issubclass(base, abc.Iterable) and inner:
        return "a list" if inner[0] is Any else f"a list of {_described(inner[0])}"
    name = getattr(base, "__name__", str(base))
    return "anything" if hint is Any else f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def _kinds(hint: Any) -> Iterable[str]:
    yield getattr(hint, "__name__", "")
    for inner in typing.get_args(hint):
        yield from _kinds(inner)


# -- reading annotations -----------------------------------------------------------------------


class _NotImported:
    """A module or type of a package that is not imported, so that no value can be of it."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Names(dict[str, Any]):
    """The names in the annotations of a module: its own, and its imports for type checkers.

    An alias that is written in quotes is resolved where it stands.
    """

    def __init__(self, module: types.ModuleType):
        super().__init__({**vars(builtins), **vars(module), **_for_checkers(module)})

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        return _alias(name, found) if isinstance(found, str) else found


def _alias(name: str, text: str) -> Any:
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is text:
            with contextlib.suppress(NameError):
                return _evaluated(text, module)
    raise NameError(name)


def _evaluated(text: str, module: types.ModuleType) -> Any:
    def quoted() -> None: ...

    quoted.__annotations__ = {"it": text}
    return inspect.get_annotations(quoted, globals={}, locals=_Names(module), eval_str=True)["it"]


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function's arguments, resolved."""
    names = _Names(sys.modules[function.__module__])
    hints = inspect.get_annotations(function, globals={}, locals=names, eval_str=True)
    hints.pop("return", None)
    return hints


def _for_checkers(module: types.ModuleType) -> dict[str, Any]:
    """Return what a module imports under TYPE_CHECKING, from packages that are imported."""
    names: dict[str, Any] = {}
    # Only these lines are parsed: whole modules would take tens of milliseconds of a first call.
    for block in _FOR_CHECKERS.findall(inspect.getsource(module)):
        for line in ast.parse(textwrap.dedent(block)).body:
            if isinstance(line, ast.Import):
                for alias in line.names:
                    at = sys.modules.get(alias.name, _NotImported(alias.name))
                    names[alias.asname or alias.name.split(".")[0]] = at
            elif isinstance(line, ast.ImportFrom) and line.module:
                at = sys.modules.get(line.module, _NotImported(line.module))
                for alias in line.names:
                    names[alias.asname or alias.name] = getattr(at, alias.name)
    return names
