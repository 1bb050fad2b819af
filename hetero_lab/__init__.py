"""hetero_lab: a laboratory for OpenVINO's HETERO device.

See which op runs where and what every hand-over costs, change it, and measure the change. The
public names are imported when they are first used; ``import hetero_lab`` alone is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hetero_lab import views
    from hetero_lab.backend.devices import devices, support
    from hetero_lab.backend.emulation import EmulatedDevice, emulate
    from hetero_lab.errors import HeteroLabError, HeteroLabWarning
    from hetero_lab.experiments.benchmark_app import BenchmarkReport, read_benchmark_app
    from hetero_lab.experiments.calibrating import calibrate
    from hetero_lab.experiments.classifying import Classification, classify
    from hetero_lab.experiments.comparing import compare
    from hetero_lab.experiments.entries import priority_orders
    from hetero_lab.experiments.evaluating import Evaluation, evaluate
    from hetero_lab.experiments.explaining import explain
    from hetero_lab.experiments.optimizing import Optimized, optimize
    from hetero_lab.experiments.profiling import Profile, profile
    from hetero_lab.experiments.recovered import Recovered
    from hetero_lab.experiments.recovering import recover_accuracy
    from hetero_lab.experiments.refusals import find_refused
    from hetero_lab.experiments.stored_profile import read_profile
    from hetero_lab.experiments.sweep_result import Sweep, read_sweep
    from hetero_lab.experiments.sweeping import sweep
    from hetero_lab.model.labelled_data import dataset
    from hetero_lab.model.opgraph import OpGraph
    from hetero_lab.model.read import load
    from hetero_lab.model.samples import samples
    from hetero_lab.placement.affinity import Affinity
    from hetero_lab.placement.linting import lint
    from hetero_lab.placement.partition import Partition
    from hetero_lab.placement.placements import Placement
    from hetero_lab.placement.predicted import partition
    from hetero_lab.placement.priorities import Priorities
    from hetero_lab.planning.cost_model import CostModel
    from hetero_lab.planning.planned import plan
    from hetero_lab.planning.planner import Plan
    from hetero_lab.runtime.compiled import compile_placement as compile
    from hetero_lab.runtime.dot_dumps import HeteroDumps, hetero_dumps
    from hetero_lab.runtime.freeze import freeze
    from hetero_lab.runtime.parallel import ParallelExecutor
    from hetero_lab.runtime.quantizing import compress_weights, quantize
    from hetero_lab.widgets.explorer import SweepExplorer
    from hetero_lab.widgets.tweaker import AffinityTweaker

__version__ = "0.1.0"

_WHERE = {
    "Affinity": "placement.affinity",
    "AffinityTweaker": "widgets.tweaker",
    "BenchmarkReport": "experiments.benchmark_app",
    "Classification": "experiments.classifying",
    "CostModel": "planning.cost_model",
    "EmulatedDevice": "backend.emulation",
    "Evaluation": "experiments.evaluating",
    "HeteroDumps": "runtime.dot_dumps",
    "HeteroLabError": "errors",
    "HeteroLabWarning": "errors",
    "OpGraph": "model.opgraph",
    "Optimized": "experiments.optimizing",
    "ParallelExecutor": "runtime.parallel",
    "Partition": "placement.partition",
    "Placement": "placement.placements",
    "Plan": "planning.planner",
    "Priorities": "placement.affinity",
    "Recovered": "experiments.recovered",
    "Profile": "experiments.profiling",
    "calibrate": "experiments.calibrating",
    "classify": "experiments.classifying",
    "compile": "runtime.compiled:compile_placement",
    "compare": "experiments.comparing",
    "compress_weights": "runtime.quantizing",
    "evaluate": "experiments.evaluating",
    "explain": "experiments.explaining",
    "find_refused": "experiments.refusals",
    "dataset": "model.labelled_data",
    "devices": "backend.devices",
    "emulate": "backend.emulation",
    "freeze": "runtime.freeze",
    "hetero_dumps": "runtime.dot_dumps",
    "lint": "placement.linting",
    "load": "model.read",
    "optimize": "experiments.optimizing",
    "partition": "placement.predicted",
    "plan": "planning.planned",
    "profile": "experiments.profiling",
    "quantize": "runtime.quantizing",
    "priority_orders": "experiments.entries",
    "recover_accuracy": "experiments.recovering",
    "read_benchmark_app": "experiments.benchmark_app",
    "read_profile": "experiments.stored_profile",
    "read_sweep": "experiments.sweep_result",
    "samples": "model.samples",
    "support": "backend.devices",
    "Sweep": "experiments.sweep_result",
    "SweepExplorer": "widgets.explorer",
    "sweep": "experiments.sweeping",
}

__all__ = [*sorted(_WHERE), "views"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name == "views":
        return importlib.import_module("hetero_lab.views")
    if name not in _WHERE:
        raise AttributeError(f"module 'hetero_lab' has no attribute {name!r}")
    module, _, attribute = _WHERE[name].partition(":")
    value = getattr(importlib.import_module(f"hetero_lab.{module}"), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: Any) -> None:
    """Register the magics: ``%load_ext hetero_lab``."""
    from hetero_lab.magics import HeteroMagics

    shell.register_magics(HeteroMagics)
