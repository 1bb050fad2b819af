"""A file in TOML → the arguments of ``hl.machine``: what is asked of each model."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import hetero_lab as hl
from hetero_lab.cli import values
from hetero_lab.errors import ArgumentError, StoredFileError, last_line, shorten, unknown

_KEYS = ("devices", "objective", "budget_s", "processes", "memory_limit", "models")
_OF_MODEL = ("model", "rate_per_s", "deadline_ms", "requests", "ways", "shape")
_FILES = (".json", ".csv", ".xml")  # with a placement
_ARGUMENT = re.compile(r"\b([a-z_]+)=(?=[ ,.:])")  # of a function, which is a key here
_EXAMPLE = '[models.detect], and below it model = "detect.onnx"'


def read_machine(file: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the arguments of :func:`hetero_lab.machine` that a file has; its paths begin there.

    StoredFileError, if it cannot be read as TOML; ArgumentError for what it says wrong.
    """
    name = shorten(os.fspath(file))
    try:
        asked = tomllib.loads(Path(file).read_text("utf-8"))
    except OSError as error:
        raise StoredFileError(f"{name} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise StoredFileError(f"{name} is not TOML: {last_line(error)}.") from error
    _check_keys(asked, _KEYS, f"{name}: a machine")
    models = asked.pop("models", None)
    if not isinstance(models, dict) or not models:
        raise ArgumentError(f"{name} names no model. Write {_EXAMPLE}.")
    limits = asked.get("memory_limit")
    if isinstance(limits, dict):
        asked["memory_limit"] = {tuple(values.names(key)): most for key, most in limits.items()}
    demands = {}
    for key, said in models.items():
        try:
            demands[key] = _demand(said, Path(file).parent)
        except ArgumentError as error:
            told = _ARGUMENT.sub(r"\1", str(error))
            raise type(error)(f"{name}, {shorten(key)}: {told}") from error
    return {"devices": None, **asked, "demands": demands}


def _demand(said: Any, base: Path) -> hl.Demand:
    if not isinstance(said, dict) or "model" not in said:
        raise ArgumentError(f"This is no table with a model. Write {_EXAMPLE}.")
    _check_keys(said, _OF_MODEL, "A model")
    source = said.pop("model")
    if isinstance(source, str) and Path(source).suffix:  # otherwise a sample's name
        source = base / source
    model = hl.load(source, said.pop("shape", None))
    if isinstance(said.get("ways"), list):
        said["ways"] = [_way(way, base, model) for way in said["ways"]]
    return hl.Demand(model, **said)


def _way(text: Any, base: Path, model: Any) -> Any:
    """Return a way: a text as it is, or the placement in a file or in a frozen directory."""
    if not isinstance(text, str):
        raise ArgumentError(f"ways is a list of texts; {text!r} is none.")
    path = base / text
    if (path / "model.xml").is_file():
        path = path / "model.xml"
    if path.suffix.lower() not in _FILES:
        return text
    return replace(values.read_placement(path, model), label=text)


def _check_keys(said: Mapping[str, Any], known: Collection[str], where: str) -> None:
    for key in said:
        if key not in known:
            raise ArgumentError(unknown(f"{where} has no key", key, known, "Keys"))
