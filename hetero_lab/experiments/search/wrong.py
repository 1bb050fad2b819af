"""Wrong: which ops of a placement compute wrong numbers, and the placement without the fault."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from hetero_lab.errors import names_at_hand
from hetero_lab.experiments.environment import Environment
from hetero_lab.experiments.search.wrong_export import write_wrong
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.placement import Placement
from hetero_lab.tables import html_table

if TYPE_CHECKING:
    import openvino as ov
    import pandas as pd

Kind = Literal["none", "rounding", "op", "combination"]


@dataclass(frozen=True)
class OpError:
    """The relative error of what an op makes, by Euclidean norms; the largest of its outputs.

    Attributes
    ----------
    isolated
        With the reference's inputs, the op by itself.
    accumulated
        With what really arrives, in the placement. Every tensor is an output there, but for those
        inside of combinations that are wrong: an output in their middle would undo the fusion
        that makes them wrong.
    rounding
        What rounding in the executed precision could add up to there, at most.
    jumps
        Whether the accumulated error is more than that here, and either was not yet in what the
        op reads, or the op makes what a wrong set hands on.
    """

    op: str
    op_type: str
    device: str
    isolated: float | None
    accumulated: float | None
    rounding: float | None
    jumps: bool = False


@dataclass(frozen=True)
class WrongSet:
    """Ops that are wrong together, or that the device refuses to run together.

    Attributes
    ----------
    error
        The largest relative error of a tensor that the set makes of the reference's inputs.
    damage
        The relative error that this does to the model's outputs, the largest of them.
    minimal
        Whether it was shown that no op of it can be left out: the others were run, and were right.
    model
        These ops by themselves, each with its own name.
    inputs
        What reaches them in the reference, in the order of the model's inputs.
    makers
        The op that makes each output of the model.
    untried
        The ops without which the device refuses to run the others, so that it is not known
        whether they are needed.
    refusal
        What the device said, where it refuses the set, or crashes at it; empty where it computes
        wrong numbers.
    """

    device: str
    ops: tuple[str, ...]
    error: float
    damage: float
    minimal: bool
    model: ov.Model
    inputs: tuple[np.ndarray, ...]
    makers: tuple[str, ...]
    untried: tuple[str, ...] = ()
    refusal: str = ""


def doubt(minimal: bool, untried: Sequence[str]) -> str:
    """Say what is not known of a set, if it was not shown that all of it is needed."""
    if minimal:
        return ""
    if untried:
        return f" (the device refuses them without {names_at_hand(untried)}, so not all may matter)"
    return " (perhaps not all of them are needed)"


@dataclass(frozen=True)
class Wrong:
    """What is wrong with the numbers of a placement, and the way around it.

    Attributes
    ----------
    kind
        ``"none"``: the outputs are right. ``"rounding"``: they are off by what the executed
        precision does to this model. ``"op"``: some ops are wrong by themselves.
        ``"combination"``: some ops are wrong only together, because the plugin fuses them; or,
        with empty ``sets``, the outputs were not found right, and no op is known to be to blame.
    verdict
        In sentences.
    sets
        The ops that are wrong, each set by itself.
    op_errors
        One for each op. Those on the trusted device in f32 were not run by themselves.
    given
        The placement in question.
    placement
        The cheapest placement without the fault that was found, in the end all ops on the trusted
        device; ``proven`` and ``after`` say whether it helps. The given one where nothing
        is known to be wrong.
    proven
        Whether ``placement`` was run and its outputs were right: all that are not random.
    before, after
        The largest relative error of an output, as placed and as mended; NaN if not compared.
    precisions
        Device → the precision in which it executes.
    device_properties
        Device → what it is compiled with.
    plugins
        Emulated device → the plugin's library, and the name that it is registered under.
    trusted
        The device whose f32 is the reference.
    complete
        Whether the search came to its end; otherwise ``sets`` is what it knew when the budget
        ended.
    interrupted
        Whether Ctrl-C ended it.
    notes
        What could not be tested, and why.
    n_compiles
        How many models were compiled, on any device.
    """

    kind: Kind
    verdict: str
    sets: tuple[WrongSet, ...]
    op_errors: tuple[OpError, ...]
    given: Placement
    placement: Placement
    proven: bool
    before: float
    after: float
    precisions: Mapping[str, str]
    device_properties: Mapping[str, Mapping[str, object]]
    plugins: Mapping[str, tuple[str, str]]
    trusted: str
    complete: bool
    interrupted: bool
    notes: tuple[str, ...]
    n_compiles: int
    elapsed_s: float
    environment: Environment

    @property
    def affinity(self) -> Affinity:
        """That of ``placement``: without the fault, if that is ``proven``."""
        return self.placement.affinity

    @property
    def fix(self) -> dict[str, str]:
        """What moves: op → device, for ``affinity.fix(ops=…)``."""
        before = self.given.affinity
        return {op: self.affinity[op] for op in before.ops if self.affinity[op] != before[op]}

    @cached_property
    def culprits(self) -> pd.DataFrame:
        """One row an op that is wrong.

        ``set`` (from 1), ``op``, ``op_type``, ``device``, ``isolated_error``,
        ``accumulated_error``; ``set_error`` is that of the whole set with the reference's inputs,
        ``output_error`` what it does to the model's outputs.
        """
        import pandas as pd

        known = {error.op: error for error in self.op_errors}
        rows = [
            (
                index,
                op,
                known[op].op_type,
                found.device,
                known[op].isolated,
                known[op].accumulated,
                found.error,
                found.damage,
            )
            for index, found in enumerate(self.sets, start=1)
            for op in found.ops
        ]
        columns = ["set", "op", "op_type", "device", "isolated_error", "accumulated_error"]
        return pd.DataFrame(rows, columns=[*columns, "set_error", "output_error"])

    @cached_property
    def errors(self) -> pd.DataFrame:
        """One row an op in topological order, with its isolated and accumulated error.

        Ops on the trusted device in f32 were not run by themselves. ``rounding_error`` is what
        rounding could add up to there, at most; ``jumps`` is true where the accumulated error
        gets beyond that, and where a wrong set adds to it.
        """
        import pandas as pd

        columns = ["op", "op_type", "device", "isolated_error", "accumulated_error"]
        rows = [
            (e.op, e.op_type, e.device, e.isolated, e.accumulated, e.rounding, e.jumps)
            for e in self.op_errors
        ]
        return pd.DataFrame(rows, columns=[*columns, "rounding_error", "jumps"])

    def export(self, directory: str | os.PathLike[str]) -> None:
        """Write what is needed to report the fault and to go around it.

        ``wrong.json`` is for :func:`hetero_lab.read_wrong`, ``given.json`` the affinity in
        question, ``affinity.json`` the mended one, ``devices.json`` the same as a flat mapping
        from op to device, ``errors.csv`` and ``culprits.csv`` the tables. A directory for each
        set of wrong ops has them as a model of their own, with the inputs that reach them and
        ``show_fault.py``, which needs openvino and numpy only. What an earlier export wrote there
        is replaced.

        Raises
        ------
        OutputPathError
            The directory cannot be written.
        """
        write_wrong(self, directory)

    def __repr__(self) -> str:
        sets = "; ".join(f"{s.device}: {names_at_hand(s.ops)}" for s in self.sets)
        return f"Wrong({self.kind!r}{': ' if sets else ''}{sets})"

    def __str__(self) -> str:
        lines = [self.verdict]
        for found in self.sets:
            how = f"relative error {found.error:.2g}, of the outputs {found.damage:.2g}"
            least = doubt(found.minimal, found.untried)
            lines.append(
                f"  {found.device}: {names_at_hand(found.ops)} ({found.refusal or how}){least}"
            )
        if self.fix:
            lines.append(f"fix(ops={self.fix!r})")
        return "\n".join([*lines, *self.notes])

    def _repr_html_(self) -> str:
        return html_table(self.culprits if self.sets else self.errors, caption=self.verdict)
