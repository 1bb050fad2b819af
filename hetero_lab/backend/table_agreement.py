"""How far tables of support can be believed: those of CPU against the CPU plugin itself.

The numbers are what ``python -m tests.proof.support_agreement`` prints.
"""

from __future__ import annotations

from dataclasses import dataclass

from hetero_lab.statistics import wilson_interval


@dataclass(frozen=True)
class Agreement:
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


AGREEMENT = Agreement(
    yes_right=598, false_yes=0, no_right=0, false_no=49, unknown=170, openvino_version="2026.4.1"
)
