"""Ops of extensions, whose files the environment names; a part of run.py as well."""

from __future__ import annotations

import os
import re
import runpy

import openvino as ov

FILES = "HETERO_LAB_EXTENSIONS"


def core_with_ops() -> ov.Core:
    """Return a Core that reads the ops of libraries, and of classes in files of Python."""
    core = ov.Core()
    for file in filter(None, os.environ.get(FILES, "").split(os.pathsep)):
        values = runpy.run_path(file).values() if file.endswith(".py") else ()
        classes = [one for one in values if isinstance(one, type) and ov.Op in one.__mro__[1:]]
        for extension in classes or [file]:
            core.add_extension(extension)
    return core


def unknown_op(error: object) -> str:
    """Return the way out if a model could not be read for an op of an extension, else nothing."""
    if not (match := re.search(r"Cannot create (\S+) layer .* unsupported opset", str(error))):
        return ""
    return (
        f"{match[1]!r} is an op of an extension: set {FILES}=FILE, its library, or isolate=False."
    )
