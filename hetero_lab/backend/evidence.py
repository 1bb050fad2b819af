"""Why a device is taken to support each op of a model: what was asked or measured, and where."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hetero_lab.backend.bound import BoundModel, bind
from hetero_lab.backend.devices import supported_ops
from hetero_lab.backend.emulation import emulated_devices
from hetero_lab.backend.support_tables import (
    OF_FILE,
    OF_OP,
    SUPPORTED,
    UNSUPPORTED,
    Verdict,
    verdicts,
)
from hetero_lab.model.read import Source
from hetero_lab.statistics import wilson_interval
from hetero_lab.tables import html_table

if TYPE_CHECKING:
    import openvino as ov
    import pandas as pd


@dataclass(frozen=True)
class TableAgreement:
    """Answers of tables beside what the plugin did, as counts of ops.

    ``yes_right`` are ops that the tables call supported and that ran, ``false_yes`` those that
    did not; ``no_right`` and ``false_no`` likewise; ``unknown`` are ops without an answer.
    """

    yes_right: int
    false_yes: int
    no_right: int
    false_no: int
    unknown: int
    openvino_version: str

    @property
    def n_answered(self) -> int:
        """Ops with an answer."""
        return self.yes_right + self.false_yes + self.no_right + self.false_no

    @property
    def n_agreed(self) -> int:
        """Ops with the right answer."""
        return self.yes_right + self.no_right

    def sentence(self) -> str:
        """Say how often the tables are right, with a 95 % interval (Wilson 1927)."""
        low, high = wilson_interval(self.n_agreed, self.n_answered)
        untested = (
            ""
            if self.false_yes + self.no_right
            else " Every op ran there, so that a wrong yes could not show."
        )
        refuted = (
            f" Every no that could be tried was wrong ({self.false_no} of {self.false_no}), so for "
            "another device what the tables refuse on CPU too is called unknown."
            if self.false_no and not self.no_right
            else ""
        )
        return (
            f"How far to believe it, counted on CPU: such tables agree with OpenVINO "
            f"{self.openvino_version} in {self.n_agreed / self.n_answered:.1%} of "
            f"{self.n_answered:,} ops (95 % interval {low:.1%} to {high:.1%}; wrong yes "
            f"{self.false_yes}, wrong no {self.false_no}) and know nothing of {self.unknown} more."
            f"{untested}{refuted} On another device nothing was compared."
        )


AGREEMENT = TableAgreement(
    yes_right=710, false_yes=0, no_right=0, false_no=51, unknown=165, openvino_version="2026.4.1"
)


@dataclass(frozen=True)
class SupportEvidence:
    """What is known of a device's support for each op, in topological order.

    ``like`` names the tables that it was looked up in, and is empty where the device itself was
    asked; ``verdicts`` are pairs of op and op type with what is said of it; ``refused`` are the
    ops that the device is taken not to support.
    """

    device: str
    like: str
    verdicts: tuple[tuple[str, str, Verdict], ...]
    refused: frozenset[str]

    @property
    def reliability(self) -> str:
        """How far tables can be believed; empty where the device itself was asked."""
        return AGREEMENT.sentence() if self.like else ""

    def to_frame(self) -> pd.DataFrame:
        """Return one row an op.

        Columns: ``op``, ``op_type``, ``operator`` (ONNX's), ``answer`` (``supported``,
        ``unsupported`` or ``unknown``), ``claimed`` (whether the device is taken to support it),
        ``reason``, ``nearest``, ``source`` (what was looked up: the ``node of the file``, or the
        ``op`` put in terms of ONNX; empty where the device itself was asked).
        """
        import pandas as pd

        rows = [
            (op, kind, v.operator, v.answer, op not in self.refused, v.reason, v.nearest, v.source)
            for op, kind, v in self.verdicts
        ]
        columns = [
            "op", "op_type", "operator", "answer", "claimed", "reason", "nearest", "source",
        ]  # fmt: skip
        return pd.DataFrame(rows, columns=columns).astype({"claimed": bool})

    def lines(self, most: int = 8) -> list[str]:
        """Say in a few lines what the device does not support, and how that is known."""
        count = Counter(verdict.answer for _, _, verdict in self.verdicts)
        answers = ", ".join(f"{n} {answer}" for answer, n in count.most_common())
        source = f" by {self.like}" if self.like else ""
        found = [f"{self.device}{source}: {answers}.{self._looked_up()}"]
        causes = Counter(
            f"{op_type}: {verdict}"
            for _, op_type, verdict in self.verdicts
            if verdict.answer != SUPPORTED and verdict.reason
        )
        found += [f"  {n} {cause}" for cause, n in causes.most_common(most)]
        if len(causes) > most:
            found.append(f"  … {len(causes) - most} more")
        return [*found, *([self.reliability] if self.like else [])]

    def _looked_up(self) -> str:
        """Say how many ops were looked up as what the file says, and how many as what they are."""
        count = Counter(verdict.source for _, _, verdict in self.verdicts)
        if not count[OF_FILE]:
            return ""
        rest = f", {count[OF_OP]} as OpenVINO's ops" if count[OF_OP] else ""
        return f" Looked up: {count[OF_FILE]} as nodes of the ONNX file{rest}."

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        return html_table(self.to_frame(), caption=" ".join(self.lines(most=0)))


def support_evidence(model: Source, device: str, *, core: ov.Core | None = None) -> SupportEvidence:
    """Say of each op whether a device supports it, and how that is known.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes.
    device
        A device here. One that was emulated with ``like=`` answers by what was measured
        elsewhere, with the nearest use that had another outcome; any other is asked itself.

    Returns
    -------
    SupportEvidence
        It prints itself, with how far it can be believed; ``to_frame()`` is one row an op.

    Raises
    ------
    DeviceError
        The device is not here, or cannot say what it supports.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> acc = hl.emulate("ACC", unsupported={"Softmax"})
    >>> hl.support_evidence("digits_inception", "ACC")
    ACC: 91 supported, 1 unsupported.
      1 Softmax: the emulated ACC does not claim this op type
    """
    bound = bind(model, core)
    return evidence_of(bound, device)


def evidence_of(bound: BoundModel, device: str) -> SupportEvidence:
    """Return what is known of a device's support for a bound model."""
    supported = supported_ops(bound, device)
    spec = emulated_devices(bound.core).get(device)
    looked_up = verdicts(bound, spec.like) if spec and spec.like else {}
    rows = []
    for op in bound.graph:
        if op.type in ("Parameter", "Constant", "Result"):
            continue
        if spec is not None and not spec.allows(op.type):
            reason = f"the emulated {device} does not claim this op type"
            verdict = Verdict(UNSUPPORTED, reason=reason)
        elif op.name in looked_up:
            verdict = looked_up[op.name]
        elif op.name in supported:
            verdict = Verdict(SUPPORTED)
        else:
            verdict = Verdict(UNSUPPORTED, reason="the plugin says so")
        rows.append((op.name, op.type, verdict))
    refused = frozenset(name for name, _, _ in rows if name not in supported)
    return SupportEvidence(device, spec.like if spec else "", tuple(rows), refused)
