"""Mutants that mean the same as what they change, with the reason: they do not count."""

from __future__ import annotations

# (path, line before, line after): reason
EQUIVALENT = {
    (
        "hetero_lab/measure/sweep_run.py",
        "self._compiled.discard(key)",
        "pass",
    ): "in _release: no placement is asked for again after its group",
    (
        "hetero_lab/runtime/counters.py",
        "for index, name in zip(indices, hidden[kernel], strict=True):",
        "for index, name in zip(indices, hidden[kernel], strict=False):",
    ): "the line before compares the lengths",
    (
        "hetero_lab/runtime/compiled.py",
        "while now() < until and any(",
        "while now() <= until and any(",
    ): "no clock shows just that time",
}
