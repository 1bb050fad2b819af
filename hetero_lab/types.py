"""The classes of results: functions return them, so a program needs them for annotations only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hetero_lab import lookup

if TYPE_CHECKING:
    from hetero_lab.accuracy.classify import Classification as Classification
    from hetero_lab.accuracy.recover import Recovered as Recovered
    from hetero_lab.advise.advice import Advice as Advice
    from hetero_lab.costs.difference import Difference as Difference
    from hetero_lab.costs.prediction import Prediction as Prediction
    from hetero_lab.debug.bisection import Bisection as Bisection
    from hetero_lab.debug.investigate import Investigation as Investigation
    from hetero_lab.debug.minimal_sets import Refusals as Refusals
    from hetero_lab.debug.wrong import Wrong as Wrong
    from hetero_lab.deploy.verification import Across as Across, Verification as Verification
    from hetero_lab.devices.core import EmulatedDevice as EmulatedDevice
    from hetero_lab.doctor.doctor import Diagnosis as Diagnosis
    from hetero_lab.interop.benchmark_app import BenchmarkReport as BenchmarkReport
    from hetero_lab.interop.dot_dumps import HeteroDumps as HeteroDumps
    from hetero_lab.interop.npuw_plan import NpuwPlan as NpuwPlan
    from hetero_lab.interop.recording import Recording as Recording
    from hetero_lab.intervals import Latency as Latency, Noise as Noise
    from hetero_lab.llm.language_plans import BlockCurve as BlockCurve, PhasePlan as PhasePlan
    from hetero_lab.machine.machine_plan import MachinePlan as MachinePlan
    from hetero_lab.measure.session import SweepControl as SweepControl
    from hetero_lab.model.opgraph import OpGraph as OpGraph
    from hetero_lab.model.static_phases import StaticPhases as StaticPhases
    from hetero_lab.placement.distribution import (
        DeviceShare as DeviceShare,
        Distribution as Distribution,
    )
    from hetero_lab.placement.partition import (
        Boundary as Boundary,
        Partition as Partition,
        Subgraph as Subgraph,
    )
    from hetero_lab.planning.block_fit import BlockFit as BlockFit
    from hetero_lab.planning.planner import Plan as Plan
    from hetero_lab.planning.schedules import Schedule as Schedule, SchedulePlan as SchedulePlan
    from hetero_lab.planning.simplify import Simplified as Simplified
    from hetero_lab.results.evaluation import Evaluation as Evaluation
    from hetero_lab.results.profile_data import Generation as Generation
    from hetero_lab.results.profile_result import Profile as Profile
    from hetero_lab.results.sweep_result import Sweep as Sweep
    from hetero_lab.runtime.compiled import CompiledPlacement as CompiledPlacement
    from hetero_lab.search.explain import Comparison as Comparison
    from hetero_lab.search.hotspots import Hotspots as Hotspots
    from hetero_lab.search.optimize import Optimized as Optimized

lookup.attach(__name__)
