"""Compile a placement and check that the compiled partition is the requested one."""

from __future__ import annotations

import contextlib
import re
import threading
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import openvino as ov
from msgspec import structs

from hetero_lab.clock import now
from hetero_lab.devices.core import BoundModel, bind
from hetero_lab.devices.guard import check_compile
from hetero_lab.devices.properties import OF_THE_CORE, check_properties
from hetero_lab.errors import (
    AffinityError,
    CompileError,
    InferenceError,
    last_line,
    names_at_hand,
    shorten,
    warn,
)
from hetero_lab.model.opgraph import OpGraph, grouped, op_graph
from hetero_lab.model.read import PreparedModel, Source
from hetero_lab.placement.affinity import Affinity, labels_of
from hetero_lab.placement.partition import (
    Boundary,
    Partition,
    Subgraph,
    Wiring,
    observed_partition,
    partition_of,
    predict,
    torn_path,
)
from hetero_lab.placement.placement import BoundPlacement, Placement, PlacementLike, resolve
from hetero_lab.runtime.inputs import Inputs, Ports
from hetero_lab.runtime.pieces import Submodel, compile_submodels, cut
from hetero_lab.runtime.placed_model import header_text
from hetero_lab.runtime.tensors import can_share, set_inputs, to_array

COUNTED = {"PERF_COUNT": True}
_FINDS = "hetero_lab.investigate(model, placement) finds the ops."
_EXCLUSIVE = "EXCLUSIVE_ASYNC_REQUESTS"
_OF_SHARED_REQUESTS = ("INFERENCE_NUM_THREADS", "NUM_STREAMS")
_OWN_EXECUTOR = (
    " HETERO splits a model this way to break cycles; where devices alternate along a model, "
    "hetero_lab.ParallelExecutor (executor='parallel') cuts it between the states."
)


@dataclass(eq=False, repr=False)
class CompiledPlacement:
    """A compiled placement: call it with inputs, or inspect its partition.

    Attributes
    ----------
    placed, placement, prepared
        The placement with its model and its Core, and each of the first two alone.
    partition
        The subgraphs and boundaries: observed if the runtime reports them, else predicted.
    as_predicted
        Whether the observed partition is the predicted one; ``None`` if it was not reported.
    compiled_model, compiled_models
        OpenVINO's own object, alone and in a list: HETERO runs the subgraphs itself.
    output_names
        The names of the outputs, in the model's order.
    compile_ms
        Duration of the compile call.
    """

    placed: BoundPlacement
    compiled_model: ov.CompiledModel
    partition: Partition
    as_predicted: bool | None
    compile_ms: float

    def __post_init__(self) -> None:
        self.placement: Placement = self.placed.placement
        self.prepared: PreparedModel = self.placed.bound
        self.output_names: tuple[str, ...] = self.placed.bound.output_names
        self.compiled_models: list[ov.CompiledModel] = [self.compiled_model]
        self._ports = Ports(self.placed.bound)
        self._can_share = can_share(self.compiled_model.outputs)
        self._local = threading.local()

    def __call__(self, inputs: Inputs) -> dict[str, np.ndarray]:
        """Infer once; return name → fresh array in the model's own output order.

        Element types that NumPy lacks are widened exactly, for instance bf16 to float32.

        Raises
        ------
        InputError
            An input is missing, unknown, or has the wrong shape or element type.
        """
        request = self._request()
        set_inputs(request, self._ports.bind(inputs), self._ports.element_types)
        with inference_errors(self.placed.label):
            request.infer(share_outputs=self._can_share)  # copied once, below
        return self.read_outputs(request)

    def reset_state(self) -> None:
        """Reset the states of the model to their initial values, for calls from this thread."""
        if self.placed.graph.stateful_paths:  # AUTO's requests have no reset
            self._request().reset_state()

    def read_outputs(self, request: ov.InferRequest) -> dict[str, np.ndarray]:
        """Copy the outputs of a finished request."""
        return {n: to_array(request.get_output_tensor(i)) for i, n in enumerate(self.output_names)}

    def new_request(self, inputs: Inputs) -> ov.InferRequest:
        """Return a new request with the inputs set."""
        request = self.compiled_model.create_infer_request()
        set_inputs(request, self._ports.bind(inputs), self._ports.element_types)
        return request

    def __repr__(self) -> str:
        return f"CompiledPlacement({self.placement.label!r}, {self.partition!r})"

    def _request(self) -> ov.InferRequest:
        # One request per thread, so that calls from several threads do not interfere.
        if not hasattr(self._local, "request"):
            self._local.request = self.compiled_model.create_infer_request()
        return self._local.request


@contextlib.contextmanager
def inference_errors(label: str) -> Iterator[None]:
    """Turn errors of the runtime while it runs a placement into an InferenceError."""
    try:
        yield
    except InferenceError:  # raised by a part of the placement, with a message of its own
        raise
    except RuntimeError as error:
        raise failed_inference(shorten(label), error) from error


def failed_inference(what: str, error: RuntimeError) -> InferenceError:
    """Return an error for what the runtime compiled and did not run."""
    return InferenceError(f"The runtime failed while it ran {what}: {last_line(error)}. {_FINDS}")


def compile(
    model: Source,
    placement: PlacementLike,
    *,
    counters: bool = False,
    compile_properties: dict[str, Any] | None = None,
    checked: bool = False,
    core: ov.Core | None = None,
) -> CompiledPlacement:
    """Compile a placement and check its partition against the prediction.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes.
    placement
        A Placement, an Affinity, ``"HETERO:ACC,CPU"`` or ``"CPU"``.
    counters
        Compile with OpenVINO's performance counters (slower to run).
    compile_properties
        More properties of the compile call, for all devices, or ``{"CACHE_DIR": …}``.
    checked
        Whether the Placement was already checked against the same model and devices.

    Returns
    -------
    CompiledPlacement
        Call it with inputs. Outputs of element types that NumPy lacks are converted exactly: bf16
        and f8 to float32, so that ``output.astype(ml_dtypes.bfloat16)`` loses nothing; packed
        integers to int8 or uint8.

    Raises
    ------
    AffinityError, DeviceError, PropertyError
        The placement does not fit the model or the devices; nothing was compiled.
    CompileError
        The runtime refused; ``__cause__`` has its message.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> acc = hl.emulate("ACC", unsupported={"Softmax"})
    >>> import numpy as np
    >>> compiled = hl.compile(model, "HETERO:ACC,CPU")
    >>> compiled.partition.n_subgraphs
    2
    >>> outputs = compiled([np.zeros((1, 1, 8, 8), np.float32)])
    >>> {name: array.shape for name, array in outputs.items()}
    {'digit': (1, 10), 'parity': (1, 2)}
    """
    bound = bind(model, core)
    if checked and isinstance(placement, Placement):
        bound_placement = BoundPlacement(bound, placement)
    else:
        bound_placement = resolve(bound, placement)
    warn_of_ignored(bound_placement)
    return compile_placed(bound_placement, counters=counters, compile_properties=compile_properties)


def warn_of_ignored(placement: BoundPlacement) -> None:
    """Warn of properties that have no effect because HETERO splits the model.

    HETERO then asks its devices for exclusive requests, so that a CPU device runs one stream on
    all threads, whatever it reports.
    """
    names_of: dict[str, list[str]] = {}
    for device, properties in ({} if placement.direct else placement.properties).items():
        keys = {name for name in _OF_SHARED_REQUESTS if name in properties}
        if str(properties.get("NUM_STREAMS")) == "1":  # HETERO gives it one stream anyway
            keys.remove("NUM_STREAMS")
        if keys and _EXCLUSIVE not in properties:
            names_of[device] = sorted(keys)
    if names_of and partition_of(placement).n_subgraphs > 1:
        for device, names in names_of.items():
            warn(
                f"HETERO ignores {names_at_hand(names)} of {device} in a model that it splits, "
                f"unless {device} has {_EXCLUSIVE}: False as well."
            )


def compile_placed(
    bound_placement: BoundPlacement,
    *,
    counters: bool = False,
    compile_properties: Mapping[str, Any] | None = None,
) -> CompiledPlacement:
    """Compile a bound placement, as :func:`compile` does."""
    bound, core = bound_placement.bound, bound_placement.core
    predicted = checked_partition(bound_placement)
    target, properties = bound_placement.compile_call
    extra = dict(compile_properties or {})
    # HETERO silently drops properties that it does not know.
    of_devices = {key: value for key, value in extra.items() if key not in OF_THE_CORE}
    for device in bound_placement.devices:
        check_properties(device, of_devices, core=core)
    config = {**properties, **extra, **(COUNTED if counters else {})}
    started = now()
    try:
        model = bound.model
        if not bound_placement.direct and not bound_placement.placement.priorities:
            model, predicted = labelled_clone(bound_placement, predicted)
        check_crash(bound_placement, model, config)
        compiled = core.compile_model(model, target, config)
    except CompileError:  # it crashes
        raise
    except Exception as error:
        virtual = bound_placement.placement.virtual
        cause = "" if virtual else _who_refused(bound_placement, predicted)
        raise CompileError(
            f"The runtime refused the placement {shorten(bound_placement.label)} on "
            f"{names_at_hand(bound_placement.devices)}: {last_line(error)}.{cause}"
        ) from error
    compile_ms = (now() - started) * 1e3
    if bound_placement.direct:
        observed, as_predicted = replace(predicted, observed=True), True
    else:
        observed, as_predicted = observe(compiled, predicted)
    check_ports(bound, compiled)
    return CompiledPlacement(bound_placement, compiled, observed, as_predicted, compile_ms)


def check_crash(
    bound_placement: BoundPlacement, model: ov.Model, properties: Mapping[str, Any] | None = None
) -> None:
    """Raise CompileError if the first compile crashes; ``model`` has the labels of its nodes."""
    target, defaults = bound_placement.compile_call
    labelled = not bound_placement.direct and not bound_placement.placement.priorities
    affinities = labels_of(model) if labelled else None
    bound, devices = bound_placement.bound, bound_placement.devices
    check_compile(bound, model, target, properties or defaults, devices, affinities)


def checked_partition(placement: BoundPlacement) -> Partition:
    """Predict the partition; AffinityError if HETERO could not run it."""
    predicted = partition_of(placement)
    check_states(placement.graph, predicted, _OWN_EXECUTOR)
    check_cuts(placement.bound, predicted)
    return predicted


def labelled_clone(placement: BoundPlacement, predicted: Partition) -> tuple[ov.Model, Partition]:
    """Return a clone with an affinity on every node, and the partition that HETERO makes of it.

    When HETERO breaks cycles, a subgraph of nothing but results can remain, which it cannot
    compile ("unordered_map::at"). Such a result gets an op in front of it that changes nothing.
    """
    clone = placement.bound.model.clone()
    devices = dict(placement.affinity)
    copies: set[str] = set()
    while lonely := lonely_results(predicted):
        for index in lonely:
            result = clone.get_results()[index]
            source = result.input_value(0)
            copy = ov.opset13.convert(source, source.get_element_type().to_string())
            copy.set_friendly_name(f"{result.get_friendly_name()}/hetero_lab_copy{len(copies)}")
            # The name of an output lives on the tensor that the Result reads.
            names = source.get_names()
            result.input(0).replace_source_output(copy.output(0))
            copy.output(0).add_names(names)
            devices[copy.get_friendly_name()] = devices[source.get_node().get_friendly_name()]
            copies.add(copy.get_friendly_name())
        graph = op_graph(clone)
        predicted = predict(graph, Affinity.from_graph(graph, devices))
    for node in clone.get_ordered_ops():
        node.get_rt_info()["affinity"] = devices[node.get_friendly_name()]
    subgraphs = tuple(
        structs.replace(s, ops=tuple(op for op in s.ops if op not in copies))
        for s in predicted.subgraphs
    )
    # With an op added, the nodes are not those of the caller's graph, so their home is unknown.
    return clone, replace(predicted, subgraphs=subgraphs, home=() if copies else predicted.home)


def _who_refused(placement: BoundPlacement, predicted: Partition) -> str:
    """Compile each subgraph alone to find and name the refused one."""
    try:
        compile_submodels(cut(placement.bound, predicted), placement.properties, placement.core)
    except CompileError as error:
        return f" {error}"
    except Exception:  # a model that cannot be cut gives no answer
        pass
    return f" {_FINDS}"


def lonely_results(partition: Partition) -> list[int]:
    """Return the model outputs whose subgraph only passes a boundary tensor on."""
    return [
        int(entry[1])
        for subgraph, wiring in zip(partition.subgraphs, partition.wiring, strict=True)
        if not subgraph.ops and all(e[0] == "tensor" for e in wiring.inputs) and wiring.inputs
        for entry in wiring.outputs
        if entry[0] == "model"
    ]


def check_states(graph: OpGraph, partition: Partition, remedy: str = "") -> None:
    """Raise AffinityError if a state would be read in one subgraph and written in another."""
    if names := torn_path(graph, partition):
        where = partition.subgraph_of
        homes = {where[name] for name in names if name in where}
        raise AffinityError(
            f"The stateful path {names_at_hand(names)} would be torn into {len(homes)} "
            f"subgraphs. Put the ops around it on its device too.{remedy}"
        )


def check_cuts(bound: BoundModel, partition: Partition) -> None:
    """Raise AffinityError if HETERO could not pass a tensor of dynamic shape on.

    Before the first inference, HETERO makes a tensor for each boundary, with 0 for every size that
    its producer does not know. A submodel that requires another size refuses that tensor.
    """
    submodels = valid_submodels(bound, partition)
    shapes = {
        entry: _at_first(port.get_partial_shape())
        for submodel in submodels
        for entry, port in zip(submodel.outputs, submodel.model.outputs, strict=True)
        if entry[0] == "tensor"
    }
    refused = dict.fromkeys(
        f"{entry[1]} {port.get_partial_shape()}"
        for submodel in submodels
        for entry, port in zip(submodel.inputs, submodel.model.inputs, strict=True)
        if entry[0] == "tensor" and not port.get_partial_shape().compatible(shapes[entry])
    )
    if refused:
        raise AffinityError(
            "HETERO cannot hand over these tensors, whose shapes are not known before running: "
            f"{names_at_hand(refused)}. Keep their users on the device of their producer, or use "
            "hetero_lab.ParallelExecutor, which can."
        )


def valid_submodels(bound: BoundModel, partition: Partition) -> tuple[Submodel, ...]:
    """Cut a model with dynamic shapes into valid submodels, else raise AffinityError.

    The result is empty if all shapes are static, or with one subgraph. A submodel knows less about
    its shapes than the model: one that is computed in another submodel is an unknown input.
    """
    is_dynamic = any(output.shape is None for op in bound.graph for output in op.outputs)
    if partition.n_subgraphs < 2 or not is_dynamic:
        return ()
    submodels = cut(bound, partition)
    for submodel in submodels:
        try:
            submodel.model.validate_nodes_and_infer_types()
        except RuntimeError as error:
            raise AffinityError(
                f"Subgraph {submodel.index} on {submodel.device} is not a valid model by itself, "
                "because it does not know shapes that are computed in another one: "
                f"{last_line(error)}. Keep the ops that compute a shape on the device of its users."
            ) from error
    return submodels


def _at_first(shape: ov.PartialShape) -> ov.PartialShape:
    """Return the shape of the tensor that HETERO makes before the first inference."""
    if shape.rank.is_dynamic:
        return ov.PartialShape([0])
    return ov.PartialShape([size.get_length() if size.is_static else 0 for size in list(shape)])


def check_ports(bound: BoundModel, compiled: ov.CompiledModel) -> None:
    """Raise CompileError unless inputs and outputs kept their order, shapes and types."""

    def signature(ports: Any) -> list[tuple[str, str]]:
        return [(str(p.get_partial_shape()), p.get_element_type().get_type_name()) for p in ports]

    model = bound.model
    # A subgraph may know less of an output's shape than the whole model.
    if signature(model.inputs) != signature(compiled.inputs) or (
        [s[1] for s in signature(model.outputs)] != [s[1] for s in signature(compiled.outputs)]
    ):
        raise CompileError(
            "The compiled model's inputs or outputs are not in the model's order; its results "
            "could not be trusted."
        )


# -- what a compiled model reports: its properties, and the partition in its export's header ------

# For each submodel and each of its inputs: ("model", number), or ("edge", submodel, its output).
_Sources: TypeAlias = list[list[tuple[Any, ...]]]
# Control characters in the model's name, which the header holds and nobody needs.
_NO_XML = re.compile("&#[^;]*;|[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def ask(model: ov.CompiledModel, key: str) -> Any:
    """Return a property of a compiled model, or ``None`` if it has none of that name."""
    with contextlib.suppress(Exception):  # not every device has every property
        return model.get_property(key)
    return None


def property_values(model: ov.CompiledModel, key: str) -> dict[str, Any]:
    """Return a property of a compiled model under ``""``, or else that of each of its devices."""
    value = ask(model, key)
    if value is not None:
        return {"": value}
    return {d: p.get(key) for d, p in (ask(model, "DEVICE_PROPERTIES") or {}).items()}


def observe(compiled: ov.CompiledModel, predicted: Partition) -> tuple[Partition, bool | None]:
    """Return the compiled partition, and whether it is the predicted one.

    It is the predicted one and ``None`` if none is reported. Another one gives a warning.
    """
    header = parse_header(header_text(compiled))
    if header is None:
        return predicted, None
    order = match_header(header, predicted)
    if order is not None:
        return observed_partition(predicted, order), True
    warn(
        "The runtime compiled another partition than predicted: "
        f"{header.n_subgraphs} subgraphs where {predicted.n_subgraphs} were expected. "
        "The observed one is reported; it does not show which op is in which subgraph."
    )
    return replace(header, wiring=tuple(Wiring((), ()) for _ in header.wiring)), False


def parse_header(text: str) -> Partition | None:
    """Read the XML that an exported HETERO model begins with; ``None`` if there is none.

    The submodels are in execution order. The header names no ops: tensors are
    ``("tensor", "subgraphN", port)`` in the wiring.
    """
    if not text:
        return None
    root = ET.fromstring(_NO_XML.sub("", text))

    def places(path: str, prefix: str = "") -> list[tuple[int, int]]:
        idx, node = f"{prefix}submodel_idx", f"{prefix}node_idx"
        return [(int(e.get(idx, -1)), int(e.get(node, -1))) for e in root.iterfind(path)]

    submodels = root.iterfind("compiled_submodels/compiled_submodel")
    devices = [e.get("device", "") for e in submodels]
    inputs: list[dict[int, tuple[str | int, ...]]] = [{} for _ in devices]
    outputs: list[dict[int, tuple[str | int, ...]]] = [{} for _ in devices]
    for number, (submodel, port) in enumerate(places("inputs_to_submodels_inputs/pair")):
        inputs[submodel][port] = ("model", number)
    for number, (submodel, port) in enumerate(places("outputs_to_submodels_outputs/pair")):
        outputs[submodel][port] = ("model", number)
    receivers: dict[tuple[int, int], list[int]] = {}
    links = "submodels_input_to_prev_output/record"
    for (target, port), source in sorted(
        zip(places(links, "in_"), places(links, "out_"), strict=True)
    ):
        submodel, source_port = source
        entry = ("tensor", f"subgraph{submodel}", source_port)
        inputs[target][port] = outputs[submodel][source_port] = entry
        receivers.setdefault(source, []).append(target)
    return Partition(
        subgraphs=tuple(Subgraph(device, ()) for device in devices),
        boundaries=tuple(
            Boundary(f"subgraph{s}:{port}", "", port, s, tuple(sorted(set(targets))), None)
            for (s, port), targets in receivers.items()
        ),
        wiring=tuple(
            Wiring(*(tuple(entry for _, entry in sorted(side.items())) for side in sides))
            for sides in zip(inputs, outputs, strict=True)
        ),
        observed=True,
    )


def match_header(header: Partition, predicted: Partition) -> list[int] | None:
    """Find the predicted subgraph of each submodel of the header.

    Devices, the model's inputs and outputs, and every edge have to agree; ``None`` if they
    do not. Submodels are told apart by refining colours over the edges (Weisfeiler and
    Leman 1968), then assigned in execution order.
    """
    observed, expected = _sources(header), _sources(predicted)
    observed_colours, expected_colours = _colours(header, observed), _colours(predicted, expected)
    if Counter(observed_colours) != Counter(expected_colours):
        return None
    candidates = grouped((colour, index) for index, colour in enumerate(expected_colours))
    order: dict[int, int] = {}
    for submodel, (colour, entries) in enumerate(zip(observed_colours, observed, strict=True)):
        # Submodels of equal colours differ only in their producers, which are assigned already.
        sources = [e if e[0] == "model" else (e[0], order.get(e[1]), e[2]) for e in entries]
        fitting = [c for c in candidates[colour] if expected[c] == sources]
        if not fitting:
            return None
        order[submodel] = fitting[0]
        candidates[colour].remove(fitting[0])
    return list(order.values())


def _sources(partition: Partition) -> _Sources:
    producer_of = {
        entry: (index, port)
        for index, wiring in enumerate(partition.wiring)
        for port, entry in enumerate(wiring.outputs)
    }
    return [
        [entry if entry[0] == "model" else ("edge", *producer_of[entry]) for entry in wiring.inputs]
        for wiring in partition.wiring
    ]


def _colours(partition: Partition, sources: _Sources) -> list[int]:
    """Return a number for each submodel; equal numbers have equal surroundings."""
    colours = [
        hash((s.device, *((port, e) for port, e in enumerate(w.outputs) if e[0] == "model")))
        for s, w in zip(partition.subgraphs, partition.wiring, strict=True)
    ]
    users: list[list[tuple[int, int, int]]] = [[] for _ in colours]
    for submodel, entries in enumerate(sources):
        for port, entry in enumerate(entries):
            if entry[0] == "edge":
                users[entry[1]].append((entry[2], submodel, port))
    distinct = 0
    while len(set(colours)) > distinct:
        distinct = len(set(colours))
        reads = [tuple(e if e[0] == "model" else (colours[e[1]], e[2]) for e in s) for s in sources]
        feeds = [tuple(sorted((p, colours[user], q) for p, user, q in uses)) for uses in users]
        colours = list(map(hash, zip(colours, reads, feeds, strict=True)))
    return colours
