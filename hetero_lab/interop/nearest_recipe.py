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

_MOST_ORDERS = 24


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


def recipe_for(placed: BoundPlacement, runtime: str) -> str:
    if placed.placement.priorities:
        return placed.placement.recipe(runtime)
    target, n_elsewhere = _nearest(placed)
    counted = f"{n_elsewhere} of {len(placed.affinity.ops)} ops run elsewhere."
    unlabelled = counted if n_elsewhere else ""
    if not placed.direct and islands(placed.graph) > 1:
        unlabelled = "HETERO swaps inputs or outputs of a model in parts that are not connected."
    return text_for(target, placed.compile_call[1], runtime, unlabelled)


def _nearest(placed: BoundPlacement) -> tuple[str, int]:
    """Return the device's name that comes nearest to a placement, and how many ops differ."""
    if placed.direct:
        return placed.compile_call[0], 0
    found = {}
    for order in itertools.islice(itertools.permutations(placed.devices), _MOST_ORDERS):
        try:
            own = greedy(placed.bound, order)
        except DeviceError:  # an op that none of them supports is not there
            continue
        found[order] = sum(own[op] != placed.affinity[op] for op in own.ops)
    order = min(found, key=found.__getitem__)
    return f"HETERO:{','.join(order)}", found[order]
