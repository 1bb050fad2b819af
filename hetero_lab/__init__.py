"""hetero_lab: a laboratory for OpenVINO's HETERO device.

See which op runs where and what every boundary costs, change it, and measure the change. The
names below are imported when they are first used (:mod:`hetero_lab.lookup`); ``import hetero_lab``
alone is quick. Functions for language models are in :mod:`hetero_lab.llm`, those for files of
other tools in :mod:`hetero_lab.interop`, and the classes of results in :mod:`hetero_lab.types`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hetero_lab import lookup

# This is the list of public names.
if TYPE_CHECKING:
    from hetero_lab import interop as interop, llm as llm, types as types, views as views
    from hetero_lab.accuracy.classify import classify as classify
    from hetero_lab.accuracy.evaluate import evaluate as evaluate
    from hetero_lab.accuracy.quantize import (
        compress_weights as compress_weights,
        quantize as quantize,
    )
    from hetero_lab.accuracy.recover import recover_accuracy as recover_accuracy
    from hetero_lab.advise.advise import advise as advise
    from hetero_lab.costs.cost_model import CostModel as CostModel
    from hetero_lab.debug.bisection import bisect as bisect
    from hetero_lab.debug.find_wrong import find_wrong as find_wrong
    from hetero_lab.debug.investigate import investigate as investigate
    from hetero_lab.debug.minimal_sets import find_refused as find_refused
    from hetero_lab.debug.wrong import read_wrong as read_wrong
    from hetero_lab.deploy.freeze import freeze as freeze
    from hetero_lab.deploy.verify import verify as verify
    from hetero_lab.devices.devices import devices as devices, support as support
    from hetero_lab.devices.emulation import emulate as emulate
    from hetero_lab.doctor.doctor import doctor as doctor
    from hetero_lab.errors import (
        BudgetWarning as BudgetWarning,
        HeteroLabError as HeteroLabError,
        HeteroLabWarning as HeteroLabWarning,
    )
    from hetero_lab.interrupts import last_interrupted as last_interrupted
    from hetero_lab.lint.lint import lint as lint
    from hetero_lab.machine.demand import Demand as Demand
    from hetero_lab.machine.machine import machine as machine
    from hetero_lab.measure.profile import profile as profile
    from hetero_lab.measure.sweep import sweep as sweep
    from hetero_lab.measure.worker_process import Workers as Workers
    from hetero_lab.model.blocks import blocks as blocks
    from hetero_lab.model.language import Scenario as Scenario
    from hetero_lab.model.read import load as load
    from hetero_lab.parallel.executor import ParallelExecutor as ParallelExecutor
    from hetero_lab.placement.affinity import Affinity as Affinity
    from hetero_lab.placement.distribution import distribution as distribution
    from hetero_lab.placement.partition import partition as partition
    from hetero_lab.placement.placement import (
        Placement as Placement,
        block_cuts as block_cuts,
    )
    from hetero_lab.placement.priorities import (
        Priorities as Priorities,
        priority_orders as priority_orders,
    )
    from hetero_lab.planning.block_fit import fit_blocks as fit_blocks
    from hetero_lab.planning.plan import plan as plan
    from hetero_lab.planning.simplify import simplify as simplify
    from hetero_lab.results.profile_result import read_profile as read_profile
    from hetero_lab.results.sweep_builder import read_sweep as read_sweep
    from hetero_lab.runtime.compiled import compile as compile
    from hetero_lab.runtime.stored_placement import read_placement as read_placement, save as save
    from hetero_lab.samples.catalogue import samples as samples
    from hetero_lab.samples.datasets import Dataset as Dataset, Metric as Metric, dataset as dataset
    from hetero_lab.search.calibrate import calibrate as calibrate
    from hetero_lab.search.explain import compare as compare, explain as explain
    from hetero_lab.search.hotspots import hotspots as hotspots
    from hetero_lab.search.noise import measure_noise as measure_noise
    from hetero_lab.search.optimize import optimize as optimize
    from hetero_lab.widgets.explorer.explorer import SweepExplorer as SweepExplorer
    from hetero_lab.widgets.tweaker.tweaker import AffinityTweaker as AffinityTweaker

__version__ = "0.2.0"

lookup.attach(__name__)


def load_ipython_extension(shell: Any) -> None:
    """Register the magics; figures bring a static picture along where kaleido is installed."""
    from hetero_lab.cli.magics import HeteroMagics
    from hetero_lab.views.static_pictures import add_static_pictures

    shell.register_magics(HeteroMagics)
    add_static_pictures()
