"""The partition of a model and a placement, without compiling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hetero_lab.model.read import Source, prepare
from hetero_lab.placement.partition import Partition, one_subgraph, predict
from hetero_lab.placement.placement import PlacementLike, resolve

if TYPE_CHECKING:
    import openvino as ov


def partition(model: Source, placement: PlacementLike, *, core: ov.Core | None = None) -> Partition:
    """Predict the subgraphs and boundaries that HETERO will make, without compiling.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes.
    placement
        An Affinity, a Placement, ``"HETERO:ACC,CPU"`` or ``"CPU"``.

    Returns
    -------
    Partition
        ``.subgraphs``, ``.boundaries``, ``.n_subgraphs``, ``.boundary_bytes``.

    Raises
    ------
    AffinityError, DeviceError
        The affinity is of another model, or a device cannot run what is placed on it.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> acc = hl.emulate("ACC", unsupported={"Softmax"})
    >>> found = hl.partition(model, "HETERO:ACC,CPU")
    >>> [(subgraph.device, len(subgraph.ops)) for subgraph in found.subgraphs]
    [('ACC', 91), ('CPU', 1)]
    >>> found.boundary_bytes
    40
    """
    prepared = prepare(model)
    resolved = resolve(prepared, placement, core=core)
    predicted = predict(prepared.graph, resolved.affinity)
    if resolved.direct:
        return one_subgraph(predicted, resolved.affinity.devices[0])
    return predicted
