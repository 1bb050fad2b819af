import math

from hetero_lab.experiments.results.profile.tables import generation_columns
from hetero_lab.model.language import Scenario
from hetero_lab.runtime.generation import Generation
from hetero_lab.statistics import Estimate, Latency


def test_an_interval_that_begins_at_0_has_no_highest_rate():
    further = Latency(((100.0,), (300.0,)))
    generation = Generation(Scenario(4, 3, batch=2), Latency(((500.0,),)), further, ())
    columns = generation_columns(generation, Estimate(200.0, 0.0, 400.0))
    assert columns["tpot_ci95_low_ms"] == 0.0
    assert columns["tokens_per_s"] == 10_000.0
    assert columns["tokens_per_s_ci95_low"] == 5_000.0
    assert columns["tokens_per_s_ci95_high"] == math.inf
