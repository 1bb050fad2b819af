"""Text → value: the words of a command line, or a file in TOML, as arguments of the library."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import hetero_lab as hl
from hetero_lab.errors import (
    ArgumentError,
    StoredFileError,
    did_you_mean,
    last_line,
    names_at_hand,
    shorten,
    unknown,
)

Value = bool | int | str

_EMULATE_KEYS = ("base", "supported", "unsupported", "faster_by")
_PROPERTY_KEY = re.compile(r"[A-Z][A-Z0-9_]*")
_KEYS_OF_MACHINE = ("devices", "objective", "budget_s", "processes", "memory_limit", "models")
_KEYS_OF_MODEL = ("model", "rate_per_s", "deadline_ms", "requests", "ways", "shape")
_PLACED_FILES = (".json", ".csv", ".xml")  # with a placement
_ARGUMENT = re.compile(r"\b([a-z_]+)=(?=[ ,.:])")  # of a function, which is a key here
_EXAMPLE = '[models.detect], and below it model = "detect.onnx"'


def split_line(line: str) -> list[str]:
    """Split the line of a magic at spaces; quotes group, a backslash is a plain character."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace_split = True
    lexer.commenters = ""
    lexer.escape = ""
    try:
        return list(lexer)
    except ValueError as error:
        raise ArgumentError(f"A quote is not closed in {shorten(line)}.") from error


def whole(text: str) -> int:
    """Read a whole number; the function that takes it checks its bounds."""
    if not re.fullmatch(r"-?[0-9]{1,12}", text):
        raise argparse.ArgumentTypeError(f"{shorten(text)} is not a whole number")
    return int(text)


def names(text: str) -> list[str]:
    """Read ``"hetero,parallel"``."""
    return [name.strip() for name in text.split(",")]


def listed(kind: Callable[[str], Any], form: str) -> Callable[[str], list[Any]]:
    """Return a reader of one number or several with commas in between, such as ``form``."""

    def read(text: str) -> list[Any]:
        try:
            return [kind(part) for part in text.split(",")]
        except ValueError as error:
            raise argparse.ArgumentTypeError(
                f"{shorten(text)} is not of the form {form}"
            ) from error

    return read


def shapes(texts: Iterable[str]) -> dict[str, list[int]] | list[int]:
    """Read ``["x=1,3,224,224"]`` as ``{"x": [1, 3, 224, 224]}``, ``["1,3"]`` as ``[1, 3]``."""
    by_input: dict[str, list[int]] = {}
    for text in texts:
        name, equals, sizes = text.rpartition("=")
        inside = sizes.strip().removeprefix("[").removesuffix("]")
        numbers = inside.split(",") if sizes.strip() != "[]" else []  # of a scalar
        if bool(name) != bool(equals) or not all(size.strip().isdecimal() for size in numbers):
            raise ArgumentError(
                f"--shape {shorten(text)} is not of the form INPUT=1,3,224,224 (whole numbers)."
            )
        _once(by_input, name, "--shape")
        by_input[name] = [int(size) for size in numbers]
    if "" in by_input and len(by_input) > 1:
        raise ArgumentError("--shape: name the input of each shape, INPUT=1,3,224,224.")
    return by_input.get("", by_input)


def pairs(
    texts: Iterable[str], option: str, form: str, *, first: bool = False, again: bool = False
) -> dict[str, str]:
    """Read ``["GPU=2GiB"]`` as ``{"GPU": "2GiB"}``: divide at the last ``=``, or at the first.

    With ``again`` a name may be given twice; the later one wins, and comes last.
    """
    result: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=") if first else text.rpartition("=")
        name, value = name.strip(), value.strip()
        if not (equals and name and value):
            raise ArgumentError(f"{option} {shorten(text)} is not of the form {form}.")
        if not again:
            _once(result, name, option)
        result.pop(name, None)
        result[name] = value
    return result


def properties(texts: Iterable[str]) -> dict[str, dict[str, Value]]:
    """Read ``["CPU.INFERENCE_NUM_THREADS=2"]`` as ``{"CPU": {"INFERENCE_NUM_THREADS": 2}}``."""
    result: dict[str, dict[str, Value]] = {}
    form = "DEVICE.KEY=VALUE, for instance CPU.INFERENCE_PRECISION_HINT=f32"
    for name, value in pairs(texts, "--property", form, first=True).items():
        device, _, key = name.rpartition(".")  # a device may have a dot: GPU.0
        if not (device and key):
            raise ArgumentError(f"--property {shorten(name)} is not of the form {form}.")
        result.setdefault(device, {})[key] = read_value(value)
    return result


def read_value(text: str) -> Value:
    """Read a property's value: ``True`` and ``False``, whole numbers, else the text itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,18}", text) else text


def fixes(texts: Iterable[str]) -> dict[str, str]:
    """Read ``["^head_=CPU"]`` as ``{"^head_": "CPU"}``, in order; the later of two wins."""
    return pairs(texts, "--fix", "PATTERN=DEVICE, for instance '^head_=CPU'", again=True)


def cell_fixes(cell: str) -> list[str]:
    """Read the lines ``pattern = DEVICE`` of a cell; ``#`` begins a comment."""
    lines = [line for line in map(str.strip, cell.splitlines()) if line and line[0] != "#"]
    if not lines:
        raise ArgumentError("The cell has no fix. Write one a line: ^block3/ = CPU.")
    return lines


def pins(texts: Sequence[str]) -> dict[str, str]:
    """Read ``["^head_=CPU"]``: the device of the ops that a pattern finds."""
    return pairs(texts, "--pin", "NAME=VALUE, for instance '^head_=CPU'")


def memory_limit(texts: Sequence[str]) -> Mapping[tuple[str, ...], str]:
    """Read ``["GPU.0=2GiB", "GPU.0,CPU=6GiB"]``: limits of devices, and of those that share."""
    form = "NAME=VALUE, for instance GPU.0=2GiB or GPU.0,CPU=6GiB"
    limits = pairs(texts, "--memory-limit", form)
    return {tuple(names(key)): limit for key, limit in limits.items()}


def grid(texts: Sequence[str]) -> dict[str, list[Value]]:
    """Read ``["CPU.NUM_STREAMS=1,2"]`` as ``{"CPU.NUM_STREAMS": [1, 2]}``."""
    lists = pairs(texts, "--grid", "DEVICE.KEY=VALUE1,VALUE2", first=True)
    return {name: [read_value(value) for value in text.split(",")] for name, text in lists.items()}


def emulation(text: str) -> dict[str, Any]:
    """Read ``"ACC:unsupported=Softmax,Concat:base=CPU"`` as arguments of ``emulate``."""
    form = "NAME:supported=Convolution,MatMul or NAME:unsupported=Softmax:base=CPU"
    name, *parts = text.split(":")
    if not name or not all(re.fullmatch(r"[^=]+=.+", part) for part in parts):
        raise ArgumentError(f"--emulate {shorten(text)} is not of the form {form}.")
    arguments: dict[str, Any] = {"name": name, "properties": {}}
    for part in parts:
        key, _, value = part.partition("=")
        if key not in _EMULATE_KEYS and not _PROPERTY_KEY.fullmatch(key):
            raise ArgumentError(
                f"--emulate does not know {shorten(key)}.{did_you_mean(key, _EMULATE_KEYS)} "
                f"Keys: {names_at_hand(_EMULATE_KEYS)}, or a property in upper case."
            )
        _once({**arguments, **arguments["properties"]}, key, "--emulate")
        if key not in _EMULATE_KEYS:
            arguments["properties"][key] = read_value(value)
        elif key.endswith("supported"):
            arguments[key] = {op_type for op_type in names(value) if op_type}
        else:
            arguments[key] = value
    return arguments


def read_affinity(path: str | os.PathLike[str], model: Any) -> hl.Affinity:
    """Read an affinity of a model from .json or .csv."""
    kind = Path(path).suffix.lower()
    if kind not in (".json", ".csv"):
        raise ArgumentError(
            f"{shorten(os.fspath(path))} is not an affinity: name a .json or .csv file, as "
            "affinity.to_json(file) and affinity.to_csv(file) write it."
        )
    return hl.Affinity.from_csv(path) if kind == ".csv" else hl.Affinity.from_json(path, model)


def share_or_none(text: str) -> float | str:
    """Read a share; ``none`` stays a word, as an option without a value gives no argument."""
    return text.lower() if text.lower() == "none" else float(text)


def read_placement(path: str | os.PathLike[str], model: Any) -> hl.Placement:
    """Read a placement from a model's file that carries one, or an affinity of that model."""
    from hetero_lab.placement.placement import with_label

    if Path(path).suffix.lower() == ".xml":
        return hl.read_placement(path)
    return with_label(read_affinity(path, model), Path(path).name)


def _once(earlier: Mapping[str, Any], key: str, option: str) -> None:
    if key in earlier:
        raise ArgumentError(f"{option} gives {shorten(key)} twice.")


def read_machine(file: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the arguments of :func:`hetero_lab.machine` that a file has; its paths begin there.

    StoredFileError, if it cannot be read as TOML; ArgumentError for what it says wrong.
    """
    name = shorten(os.fspath(file))
    try:
        config = tomllib.loads(Path(file).read_text("utf-8"))
    except OSError as error:
        raise StoredFileError(f"{name} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise StoredFileError(f"{name} is not TOML: {last_line(error)}.") from error
    _check_keys(config, _KEYS_OF_MACHINE, f"{name}: a machine")
    models = config.pop("models", None)
    if not isinstance(models, dict) or not models:
        raise ArgumentError(f"{name} names no model. Write {_EXAMPLE}.")
    limits = config.get("memory_limit")
    if isinstance(limits, dict):
        config["memory_limit"] = {tuple(names(key)): most for key, most in limits.items()}
    demands = {}
    for key, table in models.items():
        try:
            demands[key] = _demand(table, Path(file).parent)
        except ArgumentError as error:
            message = _ARGUMENT.sub(r"\1", str(error))
            raise type(error)(f"{name}, {shorten(key)}: {message}") from error
    return {"devices": None, **config, "demands": demands}


def _demand(table: Any, base: Path) -> hl.Demand:
    if not isinstance(table, dict) or "model" not in table:
        raise ArgumentError(f"This is no table with a model. Write {_EXAMPLE}.")
    _check_keys(table, _KEYS_OF_MODEL, "A model")
    source = table.pop("model")
    if isinstance(source, str) and Path(source).suffix:  # otherwise a sample's name
        source = base / source
    model = hl.load(source, table.pop("shape", None))
    if isinstance(table.get("ways"), list):
        table["ways"] = [_way(way, base, model) for way in table["ways"]]
    return hl.Demand(model, **table)


def _way(text: Any, base: Path, model: Any) -> Any:
    """Return a way: a text as it is, or the placement in a file or in a frozen directory."""
    if not isinstance(text, str):
        raise ArgumentError(f"ways is a list of texts; {text!r} is none.")
    path = base / text
    if (path / "model.xml").is_file():
        path = path / "model.xml"
    if path.suffix.lower() not in _PLACED_FILES:
        return text
    return replace(read_placement(path, model), label=text)


def _check_keys(table: Mapping[str, Any], keys: Collection[str], where: str) -> None:
    for key in table:
        if key not in keys:
            raise ArgumentError(unknown(f"{where} has no key", key, keys, "Keys"))
