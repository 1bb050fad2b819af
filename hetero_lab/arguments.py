"""The kinds and bounds of arguments, checked at every public function from its annotations.

What an annotation says is checked before the function runs, so that the wrong kind of thing is an
ArgumentError that names the argument, and not an AttributeError somewhere inside. Numbers whose
meaning is in their name have bounds here. Annotations are read at the first call. No package is
imported for them: a class that a module imports for type checkers only is told by its name.
"""

from __future__ import annotations

import builtins
import collections.abc as abc
import functools
import inspect
import os
import re
import types
import typing
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from hetero_lab.errors import ArgumentError, HeteroLabError, did_you_mean, shorten

_F = TypeVar("_F", bound=Callable[..., Any])
# What executor= may be: OpenVINO's own HETERO (or one device), or the parallel one.
HETERO, PARALLEL = "hetero", "parallel"
EXECUTORS = (HETERO, PARALLEL)
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
_MOST_SECONDS = 1e9  # 31 years: far below what Python's locks on Linux wait for at most
# These have a better check inside, which knows the samples, devices or ops. Its error comes first;
# the annotation is asked if anything else breaks.
_KNOWN_INSIDE = {
    "model", "source", "shapes", "placement", "placements", "name", "devices",
    "device", "text", "ops", "types", "patterns", "budget_s", "pin", "memory_limit",
    "calibration", "data",
    "profiles", "results", "result", "client", "executor", "grid", "inputs", "mean",
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
    "demands": "{'detect': hetero_lab.Demand(model)}",
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
    (:mod:`hetero_lab.lookup`); methods and constructors that users call wear it as a decorator,
    so that a class is one and the same however it was reached.
    """
    if isinstance(function, type):
        setattr(function, "__init__", checked(vars(function)["__init__"]))  # noqa: B010
        return typing.cast(_F, function)
    names = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        values = {**dict(zip(names, args, strict=False)), **options}
        hints = _hints_of(function)
        for name, value in values.items():
            if name not in names:
                near = did_you_mean(name, names).replace("'?", "='?")
                near = near or f" Arguments: {', '.join(n for n in names if n != 'self')}."
                callee = function.__qualname__.removesuffix(".__init__")
                raise ArgumentError(f"{callee} has no argument {name}=.{near}")
            _check_most(name, value)
            if name not in _KNOWN_INSIDE:
                _check(name, value, hints.get(name, Any))
        try:
            return function(*args, **options)
        except HeteroLabError:
            raise
        except (AttributeError, TypeError, ValueError, KeyError, OverflowError):
            for name in values:
                _check(name, values[name], hints.get(name, Any))
            raise

    return typing.cast(_F, call)


def check_whole(name: str, value: object, *, least: int) -> int:
    """Return a whole number of at least ``least``; raise ArgumentError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ArgumentError(f"{name}= is a whole number of at least {least}, not {value!r}.")
    return value


def check_positive(name: str, value: object) -> None:
    """Raise ArgumentError for anything but a number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ArgumentError(f"{name}= is a number above 0, not {value!r}.")


def _check(name: str, value: Any, hint: Any) -> None:
    if not _fits(value, hint):
        words = _described(hint)
        way = next((f" {_WAYS[kind]}." for kind in re.findall(r"\w+", words) if kind in _WAYS), "")
        way += f" For instance {_EXAMPLES[name]}." if name in _EXAMPLES else ""
        kind, text = type(value).__name__, repr(value)
        # The repr of a result is long, so its kind is named instead.
        actual = f"{text} ({kind})" if len(text) <= 80 and text.isprintable() else kind
        raise ArgumentError(f"{name}= is {words}, not {actual}.{way}")


def _check_most(name: str, value: Any) -> None:
    most = _MOST_SECONDS if name.endswith("_s") else _MOST.get(name)
    if most is not None and isinstance(value, int | float) and not value <= most:
        raise ArgumentError(f"{name}= is at most {most:,.0f}, not {shorten(repr(value), 40)}.")


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value fits a resolved annotation."""
    if type(hint) is type and hint not in (int, float):
        return isinstance(value, hint)  # at once: a placement has thousands of ops
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in inner)
    if hint in (int, float):
        return isinstance(value, int | hint) and not isinstance(value, bool)
    if not isinstance(value, origin or hint):
        return False
    if isinstance(value, str | bytes):
        return origin is None  # a string is a sequence of strings, but is never meant as one
    if origin and issubclass(origin, abc.Mapping):
        return all(_fits(key, inner[0]) and _fits(one, inner[1]) for key, one in value.items())
    if inner and isinstance(value, abc.Collection):
        return all(_fits(one, inner[0]) for one in value)
    return True


_WORDS = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    os.PathLike: "a path",
    abc.Callable: "a function",
    type(None): "None",
    Any: "anything",
}


def _described(hint: Any) -> str:
    """Return an annotation in words."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        parts = list(dict.fromkeys(map(_described, inner)))
        return f"{', '.join(parts[:-1])} or {parts[-1]}" if len(parts) > 1 else parts[0]
    if origin is Literal:
        return " or ".join(map(repr, inner))
    base = origin or hint
    if base in _WORDS:
        return _WORDS[base]
    if inner and issubclass(base, abc.Mapping):
        return f"a mapping of {_described(inner[0])} to {_described(inner[1])}"
    if inner:
        return "a list" if inner[0] is Any else f"a list of {_described(inner[0])}"
    return f"{'an' if base.__name__[0] in 'AEIOU' else 'a'} {base.__name__}"


class _ByName(type):
    """A class that a module knows for type checkers only: its objects are told by its name."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("_"):  # what typing asks of a class
            raise AttributeError(name)
        return _ByName(name, (), {})

    def __instancecheck__(cls, value: object) -> bool:
        return any(kind.__name__ == cls.__name__ for kind in type(value).__mro__)


class _Names(dict[str, Any]):
    """The names in an annotation: those of its module, and classes that are told by name."""

    def __missing__(self, name: str) -> type:
        return _ByName(name, (), {})


@functools.cache
def _hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function's arguments, resolved."""
    names = _Names({**vars(builtins), **function.__globals__})
    hints = inspect.get_annotations(function, globals={}, locals=names, eval_str=True)
    hints.pop("return", None)
    return hints
