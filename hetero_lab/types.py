"""The classes of results: functions return them, so a program needs them for annotations only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hetero_lab import facade

if TYPE_CHECKING:
    from hetero_lab.backend.emulation import EmulatedDevice as EmulatedDevice
    from hetero_lab.experiments.accuracy.classify import Classification as Classification
    from hetero_lab.experiments.accuracy.evaluate import Evaluation as Evaluation
    from hetero_lab.experiments.advise.advice import Advice as Advice
    from hetero_lab.experiments.bisection import Bisection as Bisection
    from hetero_lab.experiments.deployment.verification import (
        Across as Across,
        Verification as Verification,
    )
    from hetero_lab.experiments.explain import Comparison as Comparison
    from hetero_lab.experiments.faults.investigate import Investigation as Investigation
    from hetero_lab.experiments.faults.refusals import Refusals as Refusals
    from hetero_lab.experiments.faults.wrong import Wrong as Wrong
    from hetero_lab.experiments.hotspots import Hotspots as Hotspots
    from hetero_lab.experiments.interop.benchmark_app import BenchmarkReport as BenchmarkReport
    from hetero_lab.experiments.interop.dot_dumps import HeteroDumps as HeteroDumps
    from hetero_lab.experiments.interop.npuw import NpuwPlan as NpuwPlan
    from hetero_lab.experiments.interop.recordings import Recording as Recording
    from hetero_lab.experiments.optimize import Optimized as Optimized
    from hetero_lab.experiments.pipeline import PipelineAdvice as PipelineAdvice
    from hetero_lab.experiments.recover import Recovered as Recovered
    from hetero_lab.experiments.results.profile.result import Profile as Profile
    from hetero_lab.experiments.results.sweep.result import Sweep as Sweep
    from hetero_lab.experiments.session import SweepControl as SweepControl
    from hetero_lab.model.opgraph import OpGraph as OpGraph
    from hetero_lab.model.static_phases import StaticPhases as StaticPhases
    from hetero_lab.placement.partition import (
        Boundary as Boundary,
        Partition as Partition,
        Subgraph as Subgraph,
    )
    from hetero_lab.planning.block_fit import BlockFit as BlockFit
    from hetero_lab.planning.difference import Difference as Difference
    from hetero_lab.planning.distribution import (
        DeviceShare as DeviceShare,
        Distribution as Distribution,
    )
    from hetero_lab.planning.language_plans import BlockCurve as BlockCurve, PhasePlan as PhasePlan
    from hetero_lab.planning.planner import Plan as Plan
    from hetero_lab.planning.prediction import Prediction as Prediction
    from hetero_lab.planning.schedules import Schedule as Schedule, SchedulePlan as SchedulePlan
    from hetero_lab.planning.simplify import Simplified as Simplified
    from hetero_lab.runtime.compiled import CompiledPlacement as CompiledPlacement
    from hetero_lab.runtime.generation import Generation as Generation
    from hetero_lab.statistics import Latency as Latency, Noise as Noise

__all__, __getattr__, __dir__ = facade.attach(__name__)  # pyright: ignore[reportUnsupportedDunderAll]
