"""Which ops are not on the device of their choice, and why."""

from small_models import chain

import hetero_lab as hl
from hetero_lab.model.read import prepare
from hetero_lab.placement.partition import Displacement, displacements, predict

NAMES = ("a", "b", "c", "d", "e")


def found(able, **devices):
    prepared = prepare(chain(*NAMES))
    affinity = hl.Affinity.from_graph(prepared.graph, lambda name: devices.get(name, "GPU"))
    return displacements(predict(prepared.graph, affinity), able)


def test_what_is_refused_is_a_cause_and_what_goes_along_a_consequence():
    able = {"GPU": set(NAMES) - {"b"}, "CPU": set(NAMES)}
    assert found(able, b="CPU") == {"b": Displacement("GPU", True)}
    both = found(able, b="CPU", c="CPU")
    assert both == {"b": Displacement("GPU", True), "c": Displacement("GPU", False, ("b",))}
    assert str(both["b"]) == "GPU cannot run it"
    assert str(both["c"]) == "GPU can run it; it goes along with 'b'"


def test_a_choice_is_neither():
    able = {"GPU": set(NAMES) - {"b"}, "CPU": set(NAMES)}
    assert found(able, b="CPU", d="CPU") == {"b": Displacement("GPU", True)}
    assert found({"GPU": set(NAMES), "CPU": set(NAMES)}, d="CPU") == {}
    assert found({"CPU": set(NAMES)}, b="CPU") == {}  # of GPU nothing is known


def test_of_three_devices_the_first_that_could_is_named():
    able = {"NPU": {"c"}, "GPU": {"c", "d"}, "CPU": set(NAMES)}
    here = found(able, c="CPU", d="CPU", e="CPU")
    assert here == {
        "a": Displacement("NPU", True),
        "b": Displacement("NPU", True),
        "c": Displacement("NPU", False, ("e",)),
        "d": Displacement("GPU", False, ("e",)),
        "e": Displacement("NPU", True),
    }
    assert found(able, a="GPU", b="GPU", c="GPU", d="GPU")["e"] == Displacement("NPU", True)
