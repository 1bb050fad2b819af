"""hetero_lab: a laboratory for OpenVINO's HETERO device.

See which op runs where and what every boundary costs, change it, and measure the change. The
public names are imported when they are first used; ``import hetero_lab`` alone is quick. Every
public function ends in ``KeyboardInterrupt`` after Ctrl-C (:mod:`hetero_lab.interrupts`) and
checks its arguments before anything runs (:mod:`hetero_lab.arguments`).
"""

from __future__ import annotations

import importlib
import sys
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from hetero_lab import views as views
    from hetero_lab.backend.devices import devices as devices, support as support
    from hetero_lab.backend.emulation import EmulatedDevice as EmulatedDevice
    from hetero_lab.backend.registration import emulate as emulate
    from hetero_lab.errors import (
        BudgetWarning as BudgetWarning,
        HeteroLabError as HeteroLabError,
        HeteroLabWarning as HeteroLabWarning,
    )
    from hetero_lab.experiments.accuracy.classify import (
        Classification as Classification,
        classify as classify,
    )
    from hetero_lab.experiments.accuracy.evaluate import (
        Evaluation as Evaluation,
        evaluate as evaluate,
    )
    from hetero_lab.experiments.deployment.freeze import freeze as freeze
    from hetero_lab.experiments.deployment.releases import (
        Across as Across,
        verify_across as verify_across,
    )
    from hetero_lab.experiments.deployment.verify import (
        Verification as Verification,
        verify as verify,
    )
    from hetero_lab.experiments.faults.find_wrong import find_wrong as find_wrong
    from hetero_lab.experiments.faults.refusals import (
        Refusals as Refusals,
        find_refused as find_refused,
    )
    from hetero_lab.experiments.faults.wrong import Wrong as Wrong, read_wrong as read_wrong
    from hetero_lab.experiments.interop.benchmark_app import (
        BenchmarkReport as BenchmarkReport,
        read_benchmark_app as read_benchmark_app,
    )
    from hetero_lab.experiments.interop.dot_dumps import (
        HeteroDumps as HeteroDumps,
        hetero_dumps as hetero_dumps,
    )
    from hetero_lab.experiments.interop.model_explorer import (
        export_model_explorer as export_model_explorer,
    )
    from hetero_lab.experiments.profile.profile import profile as profile
    from hetero_lab.experiments.profile.result import (
        Profile as Profile,
        read_profile as read_profile,
    )
    from hetero_lab.experiments.search.advice import Advice as Advice
    from hetero_lab.experiments.search.advise import advise as advise
    from hetero_lab.experiments.search.calibrate import calibrate as calibrate
    from hetero_lab.experiments.search.explain import explain as explain
    from hetero_lab.experiments.search.measured_memory import measure_memory as measure_memory
    from hetero_lab.experiments.search.optimize import Optimized as Optimized, optimize as optimize
    from hetero_lab.experiments.search.pipeline import PipelineAdvice as PipelineAdvice
    from hetero_lab.experiments.search.recover import (
        Recovered as Recovered,
        recover_accuracy as recover_accuracy,
    )
    from hetero_lab.experiments.sweep.comparison import Comparison as Comparison, compare as compare
    from hetero_lab.experiments.sweep.control import SweepControl as SweepControl
    from hetero_lab.experiments.sweep.entries import (
        block_cuts as block_cuts,
        priority_orders as priority_orders,
    )
    from hetero_lab.experiments.sweep.measure_noise import measure_noise as measure_noise
    from hetero_lab.experiments.sweep.reading import read_sweep as read_sweep
    from hetero_lab.experiments.sweep.result import Sweep as Sweep
    from hetero_lab.experiments.sweep.sweep import sweep as sweep
    from hetero_lab.interrupts import last_interrupted as last_interrupted
    from hetero_lab.lint.lint import lint as lint
    from hetero_lab.model.blocks import blocks as blocks
    from hetero_lab.model.language import Scenario as Scenario
    from hetero_lab.model.opgraph import OpGraph as OpGraph
    from hetero_lab.model.read import load as load
    from hetero_lab.model.static_phases import (
        StaticPhases as StaticPhases,
        static_phases as static_phases,
    )
    from hetero_lab.placement.affinity import Affinity as Affinity
    from hetero_lab.placement.partition import (
        Boundary as Boundary,
        Partition as Partition,
        Subgraph as Subgraph,
        partition as partition,
    )
    from hetero_lab.placement.placement import Placement as Placement
    from hetero_lab.placement.priorities import Priorities as Priorities
    from hetero_lab.planning.block_fit import BlockFit as BlockFit, fit_blocks as fit_blocks
    from hetero_lab.planning.cost_model import CostModel as CostModel
    from hetero_lab.planning.difference import Difference as Difference
    from hetero_lab.planning.guessing import guess_costs as guess_costs
    from hetero_lab.planning.language_plans import (
        BlockCurve as BlockCurve,
        PhasePlan as PhasePlan,
        block_curve as block_curve,
        plan_phases as plan_phases,
        plan_static_phases as plan_static_phases,
    )
    from hetero_lab.planning.list_scheduling import SchedulePlan as SchedulePlan
    from hetero_lab.planning.plan import plan as plan
    from hetero_lab.planning.planner import Plan as Plan
    from hetero_lab.planning.prediction import Prediction as Prediction
    from hetero_lab.planning.schedules import Schedule as Schedule
    from hetero_lab.runtime.compiled import (
        CompiledPlacement as CompiledPlacement,
        compile_placement,
    )
    from hetero_lab.runtime.generation import Generation as Generation
    from hetero_lab.runtime.parallel import ParallelExecutor as ParallelExecutor
    from hetero_lab.runtime.quantize import (
        compress_weights as compress_weights,
        quantize as quantize,
    )
    from hetero_lab.runtime.tokenizer import detokenize as detokenize, tokenize as tokenize
    from hetero_lab.samples.catalogue import samples as samples
    from hetero_lab.samples.datasets import (
        Dataset as Dataset,
        Metric as Metric,
        dataset as dataset,
    )
    from hetero_lab.statistics import Latency as Latency, Noise as Noise
    from hetero_lab.widgets.explorer.explorer import SweepExplorer as SweepExplorer
    from hetero_lab.widgets.tweaker.tweaker import AffinityTweaker as AffinityTweaker

    compile = compile_placement

__version__ = "0.2.0"

_WHERE = {
    "Across": "experiments.deployment.releases",
    "Advice": "experiments.search.advice",
    "advise": "experiments.search.advise",
    "Affinity": "placement.affinity",
    "AffinityTweaker": "widgets.tweaker.tweaker",
    "BlockCurve": "planning.language_plans",
    "BlockFit": "planning.block_fit",
    "Boundary": "placement.partition",
    "BenchmarkReport": "experiments.interop.benchmark_app",
    "Classification": "experiments.accuracy.classify",
    "Comparison": "experiments.sweep.comparison",
    "CompiledPlacement": "runtime.compiled",
    "CostModel": "planning.cost_model",
    "Dataset": "samples.datasets",
    "Difference": "planning.difference",
    "EmulatedDevice": "backend.emulation",
    "Evaluation": "experiments.accuracy.evaluate",
    "Generation": "runtime.generation",
    "HeteroDumps": "experiments.interop.dot_dumps",
    "HeteroLabError": "errors",
    "BudgetWarning": "errors",
    "HeteroLabWarning": "errors",
    "Latency": "statistics",
    "Metric": "samples.datasets",
    "Noise": "statistics",
    "OpGraph": "model.opgraph",
    "Optimized": "experiments.search.optimize",
    "ParallelExecutor": "runtime.parallel",
    "Partition": "placement.partition",
    "PhasePlan": "planning.language_plans",
    "PipelineAdvice": "experiments.search.pipeline",
    "Placement": "placement.placement",
    "Plan": "planning.planner",
    "Prediction": "planning.prediction",
    "Priorities": "placement.priorities",
    "Recovered": "experiments.search.recover",
    "Refusals": "experiments.faults.refusals",
    "Scenario": "model.language",
    "Schedule": "planning.schedules",
    "SchedulePlan": "planning.list_scheduling",
    "StaticPhases": "model.static_phases",
    "Subgraph": "placement.partition",
    "SweepControl": "experiments.sweep.control",
    "Profile": "experiments.profile.result",
    "block_curve": "planning.language_plans",
    "block_cuts": "experiments.sweep.entries",
    "blocks": "model.blocks",
    "calibrate": "experiments.search.calibrate",
    "classify": "experiments.accuracy.classify",
    "compile": "runtime.compiled:compile_placement",
    "compare": "experiments.sweep.comparison",
    "compress_weights": "runtime.quantize",
    "evaluate": "experiments.accuracy.evaluate",
    "export_model_explorer": "experiments.interop.model_explorer",
    "explain": "experiments.search.explain",
    "find_refused": "experiments.faults.refusals",
    "find_wrong": "experiments.faults.find_wrong",
    "fit_blocks": "planning.block_fit",
    "dataset": "samples.datasets",
    "devices": "backend.devices",
    "emulate": "backend.registration",
    "freeze": "experiments.deployment.freeze",
    "guess_costs": "planning.guessing",
    "hetero_dumps": "experiments.interop.dot_dumps",
    "last_interrupted": "interrupts",
    "lint": "lint.lint",
    "load": "model.read",
    "measure_memory": "experiments.search.measured_memory",
    "measure_noise": "experiments.sweep.measure_noise",
    "optimize": "experiments.search.optimize",
    "partition": "placement.partition",
    "plan": "planning.plan",
    "plan_phases": "planning.language_plans",
    "plan_static_phases": "planning.language_plans",
    "profile": "experiments.profile.profile",
    "quantize": "runtime.quantize",
    "priority_orders": "experiments.sweep.entries",
    "recover_accuracy": "experiments.search.recover",
    "read_benchmark_app": "experiments.interop.benchmark_app",
    "read_profile": "experiments.profile.result",
    "read_sweep": "experiments.sweep.reading",
    "read_wrong": "experiments.faults.wrong",
    "samples": "samples.catalogue",
    "support": "backend.devices",
    "Sweep": "experiments.sweep.result",
    "SweepExplorer": "widgets.explorer.explorer",
    "static_phases": "model.static_phases",
    "sweep": "experiments.sweep.sweep",
    "Verification": "experiments.deployment.verify",
    "Wrong": "experiments.faults.wrong",
    "detokenize": "runtime.tokenizer",
    "tokenize": "runtime.tokenizer",
    "verify": "experiments.deployment.verify",
    "verify_across": "experiments.deployment.releases",
}

# Arguments by their names of version 0.1, for one version more; of a class: in all its methods.
# Those without a new name have no effect any more.
_RENAMED: dict[str, dict[str, str | None]] = {
    "Affinity": {"path": "file"},
    "AffinityTweaker": {"path": "file"},
    "CostModel": {"path": "file"},
    "ParallelExecutor": {
        "affinity": "placement",
        "n_requests": "requests",
        "separate_branches": None,
        "split_branches": None,
        "properties": "compile_properties",
    },
    "compile": {"properties": "compile_properties"},
    "evaluate": {"reference": "reference_model"},
    "explain": {"a": "before", "b": "after"},
    "find_refused": {"affinity": "placement"},
    "lint": {"affinity": "placement"},
    "plan": {"time_limit_s": "budget_s", "split_branches": None},
    "profile": {"n_requests": "requests", "split_branches": None},
    "read_benchmark_app": {"path": "file"},
    "sweep": {"memory_limit_bytes": "memory_limit"},
}

__all__ = [*sorted(_WHERE), "views"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name == "views":
        return importlib.import_module("hetero_lab.views")
    if name not in _WHERE:
        raise AttributeError(f"module 'hetero_lab' has no attribute {name!r}")
    from hetero_lab import arguments, interrupts  # not before: `import hetero_lab` alone is quick

    module, _, attribute = _WHERE[name].partition(":")
    value = getattr(importlib.import_module(f"hetero_lab.{module}"), attribute or name)
    if isinstance(value, FunctionType):
        value = interrupts.guarded(arguments.checked(value))
        if name in _RENAMED:
            value = arguments.renamed(value, _RENAMED[name])
    elif isinstance(value, type) and not issubclass(value, BaseException):
        arguments.check_methods(cast("Any", value), _RENAMED.get(name, {}))
    globals()[name] = value
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


class _Facade(ModuleType):
    """Public functions keep their names beside packages of the same name.

    The import of ``hetero_lab.lint.lint`` sets an attribute ``lint`` here, which has to remain
    the function.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _WHERE and isinstance(value, ModuleType):
            return
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Facade


def load_ipython_extension(shell: Any) -> None:
    """Register the magics; figures bring a static picture along where kaleido is installed."""
    from hetero_lab.cli.magics import HeteroMagics
    from hetero_lab.views.static_pictures import add_static_pictures

    shell.register_magics(HeteroMagics)
    add_static_pictures()
