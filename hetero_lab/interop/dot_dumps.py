"""OpenVINO's own two .dot dumps of a placement, written safely and read into tables.

``OPENVINO_HETERO_VISUALIZE`` makes HETERO write ``hetero_affinity_<model>.dot`` and
``hetero_subgraphs_<model>.dot`` into the current directory at every compile. It overwrites
existing files, and writes none if the model's name has a ``/``. So a process in a directory of
its own compiles a copy of the model whose names need no quotes.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_lab.arguments import check_positive
from hetero_lab.devices.core import bind
from hetero_lab.errors import CompileError, StoredFileError, shorten
from hetero_lab.model.read import Source, save, unique
from hetero_lab.placement.partition import predict
from hetero_lab.placement.placement import BoundPlacement, PlacementLike, resolve
from hetero_lab.processes import environment_of_a_child, run_child
from hetero_lab.result import Result
from hetero_lab.runtime import placed_model
from hetero_lab.runtime.compiled import labelled_clone
from hetero_lab.runtime.stored_placement import MODEL_FILE, note_placement, standalone
from hetero_lab.tables import frame_of, scratch_directory

if TYPE_CHECKING:
    import openvino as ov
    import pandas as pd

_MODEL = "model"
_HARMLESS = re.compile(r"[A-Za-z0-9_./:-]{1,200}")
# The end of a label repeats the statement's own id, so a name before it may hold anything.
_NODE = re.compile(
    r"^    (?P<id>\w+) \[shape=[^\n]*?label=\"(?P<name>(?:(?!^    \w+ \[shape=).)*?)"
    r"\\n(?P=id)\\n[^\"\n\\]*::(?P<type>\w+)(?P<rest>[^\n]*)\]$",
    re.MULTILINE | re.DOTALL,
)
# Inputs and constants are drawn again beside each user.
_CLONE = re.compile(
    r"^    (?P<id>CLONE_\d+)\[[^\n]*?label=\"(?P<name>(?:(?!^    CLONE_\d+\[).)*?)"
    r"\\n(?P<unique>\w+)\\n[^\"\n\\]*::(?P<type>\w+)",
    re.MULTILINE | re.DOTALL,
)
# A long edge is two unconnected halves; the first says where the second is.
_SEND = re.compile(r"^    (?P<id>SEND_\d+)\[[^\n]*label=\"Send\[(?P<to>\w+)\]\"\]$", re.MULTILINE)
_EDGE = re.compile(r"^    (?P<source>\w+) -> (?P<target>\w+)(?:\[[^\n]*\])?$", re.MULTILINE)
_SUBGRAPH = re.compile(r"\\nsubgraph=(\d+)")
_DEVICE = re.compile(r"\\ndevice=([^\"\\]+)")


@dataclass(frozen=True, eq=False)
class HeteroDumps(Result):
    """The contents of OpenVINO's two .dot dumps of a placement.

    Attributes
    ----------
    nodes
        One row a node: ``node``, ``type``, ``device``, ``dump_subgraph``. Inputs and constants
        have neither device nor subgraph there. The dump numbers subgraphs in its own way: not
        in execution order, and with gaps.
    edges
        One row an input that is fed: ``source``, ``target``, ``crosses``. An edge crosses if it
        connects different subgraphs; inputs and constants are drawn beside their users, so their
        edges never do.
    affinity_dot, subgraphs_dot
        The text of the files, for Graphviz; names that would need quotes are numbered in it.
    """

    _TABLES = ("nodes", "edges", "subgraphs")

    label: str
    nodes: pd.DataFrame
    edges: pd.DataFrame
    affinity_dot: str
    subgraphs_dot: str

    @property
    def subgraphs(self) -> pd.DataFrame:
        """One row a subgraph: ``dump_subgraph``, ``device``, ``n_nodes``, ``nodes``."""
        nodes = self.nodes.dropna(subset="dump_subgraph").astype({"dump_subgraph": "int64"})
        return nodes.groupby("dump_subgraph", as_index=False).agg(
            device=("device", "first"), n_nodes=("node", "size"), nodes=("node", "\n".join)
        )

    def __repr__(self) -> str:
        return (
            f"HeteroDumps({self.label!r}, {len(self.nodes)} nodes, {len(self.edges)} edges, "
            f"{self.nodes['dump_subgraph'].nunique()} subgraphs)"
        )


def hetero_dumps(
    model: Source,
    placement: PlacementLike,
    *,
    timeout_s: float = 120.0,
    core: ov.Core | None = None,
) -> HeteroDumps:
    """Get OpenVINO's own two .dot dumps of a placement as tables.

    They show the affinities and subgraphs as the plugin itself sees them, independent of how
    hetero_lab predicts or observes a partition. Nothing is written outside a temporary directory.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes.
    placement
        A Placement, an Affinity, ``"HETERO:ACC,CPU"`` or ``"CPU"``, always compiled through
        HETERO.
    timeout_s
        Wall time after which the compiling process is ended.

    Returns
    -------
    HeteroDumps
        ``.nodes``, ``.edges``, ``.subgraphs`` (DataFrames), ``.affinity_dot``,
        ``.subgraphs_dot`` (text).

    Raises
    ------
    ArgumentError
        The time is not a number above 0.
    AffinityError, DeviceError, PropertyError
        The placement does not fit the model or the devices; nothing was compiled.
    CompileError
        The process could not compile the placement, or wrote no dumps.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> acc = hl.emulate("ACC", unsupported={"Softmax"})
    >>> hl.interop.hetero_dumps(model, "HETERO:ACC,CPU")
    HeteroDumps('HETERO:ACC,CPU', ... nodes, ... edges, 2 subgraphs)
    """
    check_positive("timeout_s", timeout_s)
    bound_placement = resolve(bind(model, core), placement)
    with scratch_directory() as directory:
        names = _write(directory, bound_placement)
        _compile_there(directory, bound_placement.label, timeout_s)
        texts = []
        for kind in ("affinity", "subgraphs"):
            path = directory / f"hetero_{kind}_{_MODEL}.dot"
            if not path.is_file():
                raise CompileError(
                    f"OpenVINO wrote no {path.name} for {shorten(bound_placement.label)}. Its "
                    "HETERO plugin may no longer know OPENVINO_HETERO_VISUALIZE."
                )
            texts.append(path.read_text(encoding="utf-8", errors="replace"))
    nodes, edges = read_dot(texts[1])
    for frame, column in ((nodes, "node"), (edges, "source"), (edges, "target")):
        frame[column] = [names.get(name, name) for name in frame[column]]
    return HeteroDumps(bound_placement.label, nodes, edges, *texts)


def read_dot(text: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read the nodes of a dump in the order of the file, and its edges, as in HeteroDumps.

    Names may hold quotes and line breaks. A node that the file never describes (an output that
    is an input or a constant of the model) keeps the runtime's own name. StoredFileError, if the
    text is not a dump of HETERO.
    """
    if not text.startswith("digraph"):
        raise StoredFileError("This is not a .dot dump of HETERO: it must begin with 'digraph'.")
    nodes: dict[str, tuple[str, str, str | None, int | None]] = {}  # by the runtime's own name
    for match in _NODE.finditer(text):
        subgraph, device = _SUBGRAPH.search(match["rest"]), _DEVICE.search(match["rest"])
        nodes[match["id"]] = (
            match["name"],
            match["type"],
            device[1] if device else None,
            int(subgraph[1]) if subgraph else None,
        )
    of_clone: dict[str, str] = {}
    for match in _CLONE.finditer(text):
        of_clone[match["id"]] = match["unique"]
        nodes.setdefault(match["unique"], (match["name"], match["type"], None, None))
    sends = {match["id"]: match["to"] for match in _SEND.finditer(text)}
    rows = []
    for match in _EDGE.finditer(text):
        source, target = match["source"], match["target"]
        if source.startswith("RECV_"):  # the first half names both ends
            continue
        edge = of_clone.get(source, source), sends.get(target, target)
        for end in edge:
            nodes.setdefault(end, (end, end.rpartition("_")[0], None, None))
        (source, *_, home), (target, *_, other) = (nodes[end] for end in edge)
        rows.append((source, target, home is not None and home != other))
    columns = ["node", "type", "device", "dump_subgraph"]
    frame = frame_of(list(nodes.values()), columns).astype({"dump_subgraph": "Int64"})
    return frame, frame_of(rows, ["source", "target", "crosses"])


def _write(directory: Path, placement: BoundPlacement) -> dict[str, str]:
    """Write a model with its program; return dumped name → own name where they differ."""
    placement = replace(placement, placement=replace(placement.placement, direct=False))
    model, _ = labelled_clone(placement, predict(placement.graph, placement.affinity))
    model.set_friendly_name(_MODEL)
    names = _rename(model.get_ordered_ops())
    note_placement(model, placement)
    save(model, directory / MODEL_FILE)
    (directory / "run.py").write_text(standalone(placed_model), encoding="utf-8")
    return names


def _rename(nodes: Sequence[Any]) -> dict[str, str]:
    in_use = {node.get_friendly_name() for node in nodes}
    names: dict[str, str] = {}
    for index, node in enumerate(nodes):
        name = node.get_friendly_name()
        if _HARMLESS.fullmatch(name):
            continue
        new = unique(f"node{index}", in_use)
        in_use.add(new)
        names[new] = name
        node.set_friendly_name(new)
    return names


def _compile_there(directory: Path, label: str, timeout_s: float) -> None:
    # Settings of the drawing would change the text that is parsed here.
    variables = environment_of_a_child(OPENVINO_HETERO_VISUALIZE="1")
    environment = {k: v for k, v in variables.items() if not k.startswith("OV_VISUALIZE")}
    try:
        command = [sys.executable, "-c", "import run; run.load('.')"]
        child = run_child(command, timeout_s=timeout_s, cwd=directory, environment=environment)
    except subprocess.TimeoutExpired as error:
        raise CompileError(
            f"The process that compiles {shorten(label)} for its dumps did not end within "
            f"{timeout_s:g} s. Give it longer: timeout_s=."
        ) from error
    if child.returncode:
        lines = child.stderr.strip().splitlines() or ["no word"]
        raise CompileError(
            f"The process that compiles {shorten(label)} for its dumps ended with code "
            f"{child.returncode}: {shorten(lines[-1], 300)}."
        )
