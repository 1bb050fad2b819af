"""The recipe for any placement: without labels, the device's name that comes nearest to it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from hetero_lab.devices.core import bind
from hetero_lab.errors import DeviceError
from hetero_lab.model.read import Source
from hetero_lab.placement.affinity import greedy
from hetero_lab.placement.placement import BoundPlacement, PlacementLike, resolve
from hetero_lab.placement.recipes import recipe as text_for
from hetero_lab.placement.topology import islands

if TYPE_CHECKING:
    import openvino as ov

_MOST_ORDERS = 24  # of devices that are tried: all orders of four


def recipe(
    model: Source, placement: PlacementLike, runtime: str, *, core: ov.Core | None = None
) -> str:
    """Return what to paste so that another runtime runs a placement.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes.
    placement
        A Placement, an Affinity, ``"HETERO:ACC,CPU"``, ``"CPU"`` or ``"AUTO:GPU,CPU"``.
    runtime
        ``"python"``, ``"optimum"`` or ``"benchmark_app"``, where ops are labelled; ``"cpp"``,
        ``"genai"``, ``"ovms"`` (OpenVINO Model Server), ``"onnxruntime"`` or ``"text"``, whose text
        begins with the number of ops that run elsewhere for lack of labels.

    Raises
    ------
    ArgumentError
        Another runtime.
    AffinityError, DeviceError, PropertyError
        The placement does not fit the model or the devices.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> acc = hl.emulate("ACC", unsupported={"Softmax"})
    >>> print(hl.interop.recipe("digits_inception", "HETERO:ACC,CPU", "genai"))
    # openvino-genai. Other attention backends drop the properties.
    import openvino_genai
    <BLANKLINE>
    pipe = openvino_genai.LLMPipeline(
        "exported", "HETERO:ACC,CPU", ATTENTION_BACKEND="SDPA", **{}
    )
    """
    return recipe_for(resolve(bind(model, core), placement), runtime)


def recipe_for(placement: BoundPlacement, runtime: str) -> str:
    if placement.placement.priorities:
        return placement.placement.recipe(runtime)
    target, n_elsewhere = _nearest(placement)
    sentence = f"{n_elsewhere} of {len(placement.affinity.ops)} ops run elsewhere."
    remark = sentence if n_elsewhere else ""
    if not placement.direct and islands(placement.graph) > 1:
        remark = "HETERO swaps inputs or outputs of a model in parts that are not connected."
    return text_for(target, placement.compile_call[1], runtime, remark)


def _nearest(placement: BoundPlacement) -> tuple[str, int]:
    """Return the device's name that comes nearest to a placement, and how many ops differ."""
    if placement.direct:
        return placement.compile_call[0], 0
    n_differing = {}
    for order in itertools.islice(itertools.permutations(placement.devices), _MOST_ORDERS):
        try:
            affinity = greedy(placement.bound, order)
        except DeviceError:  # an op that none of them supports is not there
            continue
        n_differing[order] = sum(affinity[op] != placement.affinity[op] for op in affinity.ops)
    order = min(n_differing, key=n_differing.__getitem__)
    return f"HETERO:{','.join(order)}", n_differing[order]
