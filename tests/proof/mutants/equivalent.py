"""Mutants that mean the same as what they change, with the reason: they do not count."""

from __future__ import annotations

# (path, line before, line after): reason
EQUIVALENT: dict[tuple[str, str, str], str] = {}
