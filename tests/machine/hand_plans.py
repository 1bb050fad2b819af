"""A plan made by hand, whose numbers are worked out."""

from __future__ import annotations

from hetero_lab.intervals import Noise
from hetero_lab.machine.contention import Alone
from hetero_lab.machine.demand import Demand, Goal, Turn
from hetero_lab.machine.machine_plan import ALL_AUTO, OWN_BEST, MachinePlan
from hetero_lab.machine.race import Together
from hetero_lab.measure.loads import Driven

ALONE = {"detect": {"GPU": 100.0, "CPU": 40.0}, "segment": {"GPU": 50.0, "CPU": 30.0}}


def turns(detect_per_s: float, late: int, segment_per_s: float) -> tuple[Turn, ...]:
    """Return three turns of 30 requests of *detect*, so many of them late, and of *segment*."""
    latencies = (*[10e3] * (30 - late), *[90e3] * late)
    detect = Driven(rate_per_s=detect_per_s, latencies_us=latencies, n_due=30)
    segment = Driven(rate_per_s=segment_per_s, latencies_us=(20e3,) * 30, n_due=30)
    return ({"detect": detect, "segment": segment},) * 3


def small_plan() -> MachinePlan:
    """Return a plan that moves *segment* to the CPU, beside all on the GPU and all on AUTO."""
    demands = {
        "detect": Demand("digits_inception", rate_per_s=30, deadline_ms=40),
        "segment": Demand("digits_inception", requests=2),
    }
    alone = {
        name: {way: Alone(way, rate, 1e6 / rate, 1.2e6 / rate) for way, rate in ways.items()}
        for name, ways in ALONE.items()
    }
    own, auto = dict.fromkeys(demands, "GPU"), dict.fromkeys(demands, "AUTO:GPU,CPU")
    chosen = {"detect": "GPU", "segment": "CPU"}
    shares = {"detect": 0.5, "segment": 0.2}, {}, {"detect": 0.9, "segment": 0.8}
    driven = turns(24, 6, 10), turns(27, 3, 15), turns(30, 0, 25)
    sets = (
        Together(OWN_BEST, own, shares[0], turns=driven[0], judgement="slower"),
        Together(ALL_AUTO, auto, shares[1], turns=driven[1], judgement="slower"),
        Together("split", chosen, shares[2], turns=driven[2], judgement="best"),
    )
    return MachinePlan(
        goal=Goal("share", demands, {"detect": 100.0, "segment": 50.0}),
        ways={},
        alone=alone,
        sets=sets,
        pairs={
            ("detect", "GPU", "segment", "GPU"): (50.0, 20.0),
            ("segment", "GPU", "detect", "GPU"): (20.0, 50.0),
            ("detect", "GPU", "segment", "CPU"): (90.0, 27.0),
            ("segment", "CPU", "detect", "GPU"): (27.0, 90.0),
        },
        loads={},
        left_out={},
        noise=Noise(0.005, 0.0),
    )
