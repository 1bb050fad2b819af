"""The Core that is shared unless the caller passes its own."""

from __future__ import annotations

import functools

import openvino as ov


@functools.cache
def shared_core() -> ov.Core:
    """Return the one Core of this process that hetero_lab uses by default."""
    return ov.Core()


@functools.cache
def scratch_core() -> ov.Core:
    """Return a Core to try properties on, so that nobody's settings are touched."""
    return ov.Core()


def runtime_version() -> str:
    """Return the version of the OpenVINO runtime."""
    return str(ov.get_version())
