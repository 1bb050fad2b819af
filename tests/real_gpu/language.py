"""A language model on a real GPU: alone, on the CPU, and split in both directions.

    python -m tests.real_gpu.language [--device GPU] [--model small] [--prompt 64] [--new 16]
    python -m tests.real_gpu.language --pack structure.tar.xz [--model smollm2_135m]
    python -m tests.real_gpu.language --model structure.tar.xz

Prints a line of JSON for each thing as it is measured. First the model as it is, dynamic and with
its states: prefill, further tokens, and how tokens and logits compare with the CPU in f32. Where
the device cannot run it, the smallest model is looked for that shows why. Then the same with two
static models without states. Each of the three runs in a process of its own with a deadline, so
that a crash of the plugin loses nothing.

``--pack`` writes a model without its weights, for machines that it is too large to be sent to;
they are made anew from a seed where it is read. ``--device SIM`` is an emulated device, and
``--rig`` starts OpenVINO's GPU plugin on a CPU. Everything is in f32. ``--parts`` names what is
measured (by default what is needed), ``--deadline`` is the seconds of each; ``--only`` is for the
process that measures. The exit code is 0 if the
CPU, the device or the smallest model, and the static placements were all seen.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.gpu_rig import rig

if "--rig" in sys.argv:  # before openvino is imported
    rig.start_here()

import openvino as ov
from openvino import opset13 as op

import hetero_lab as hl
from hetero_lab.devices.core import bind, shared_core
from hetero_lab.errors import HeteroLabError
from hetero_lab.llm.generation import generate
from hetero_lab.model.blocks import find_blocks
from hetero_lab.model.language import language_model
from hetero_lab.model.opgraph import op_graph
from hetero_lab.model.static_phases import static_phases
from hetero_lab.placement.placement import resolve
from hetero_lab.runtime.compiled import compile_placed
from hetero_lab.runtime.executors import CompiledSession
from hetero_lab.samples.catalogue import sample_names, sample_path
from tests.scripts import EXACT, F32, alone, options
from tests.small_language_models import StaticSession, decoder

PARTS = ("dynamic", "smallest", "static")
KEPT_BYTES = 4096  # constants of less are shapes, norms and the like
GENERATIONS = 3
TOLERANCE = 1e-3


def say(**row: Any) -> None:
    """Print a line of JSON at once."""
    print(json.dumps(row), flush=True)


def pack(model: str, file: Path) -> None:
    """Write the IR of a model with its large constants as zeros."""
    xml = Path(sample_path(model)) if model in sample_names() else Path(model)
    weights = bytearray(xml.with_suffix(".bin").read_bytes())
    for data in constants(xml):
        start, size = int(data["offset"]), int(data["size"])
        if size >= KEPT_BYTES:
            weights[start : start + size] = bytes(size)
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(file, "w:xz") as archive:
        binary = Path(scratch) / "model.bin"
        binary.write_bytes(weights)
        archive.add(xml, "model.xml")
        archive.add(binary, "model.bin")
    say(packed=str(file), bytes=file.stat().st_size)


def unpack(file: Path, directory: Path, seed: int = 0) -> Path:
    """Read what :func:`pack` wrote; fill the large constants with random numbers."""
    with tarfile.open(file) as archive:
        archive.extractall(directory, filter="data")
    xml, random = directory / "model.xml", np.random.default_rng(seed)
    weights = np.fromfile(directory / "model.bin", np.uint8)
    for data in constants(xml):
        start, size = int(data["offset"]), int(data["size"])
        if size < KEPT_BYTES:
            continue
        kind, width = data["element_type"], {"f32": 4, "f16": 2}.get(data["element_type"])
        if width is None:  # quantised
            made = random.integers(0, 256, size, np.uint8)
        else:  # a scale of quantised weights, so that a row of them has a norm of about one
            made = random.uniform(0.003, 0.009, size // width).astype(f"f{width}").view(np.uint8)
        assert kind[0] in "uif", kind
        weights[start : start + size] = made
    weights.tofile(directory / "model.bin")
    return xml


def constants(xml: Path) -> Iterator[dict[str, str]]:
    """Yield where the constants of an IR are, and their types."""
    for layer in ET.parse(xml).getroot().iter("layer"):
        if layer.get("type") == "Const":
            data = layer.find("data")
            assert data is not None
            yield dict(data.attrib)


def loaded(name: str, directory: Path) -> Any:
    """Return a prepared model: packed, small, a file or a sample."""
    if name == "small":
        return hl.load(decoder(empty_from="layer"))
    return hl.load(unpack(Path(name), directory) if name.endswith(".tar.xz") else name)


def placements(model: Any, device: str) -> list[Any]:
    """Return the CPU, the device, and half of the layers on either, in both directions."""
    known = shared_core().get_property(device, "SUPPORTED_PROPERTIES")
    exact = {key: value for key, value in EXACT.items() if key in known}
    own = {device: exact, "CPU": EXACT}
    last = int(hl.blocks(model)["block"].max())

    def split(first: str, second: str) -> hl.Placement:
        ranges = {f"0-{last // 2}": first, f"{last // 2 + 1}-{last}": second}
        return hl.Placement(hl.Affinity.by_block(model, ranges), f"{first}, {second}", own)

    whole = [alone(model, d, own[d]) for d in ("CPU", device)]
    return [*whole, split(device, "CPU"), split("CPU", device)]


def compiled(bound: Any, placement: Any, what: str) -> Any:
    """Compile; say how long it took, or why it could not be."""
    began = time.perf_counter()
    try:
        made = compile_placed(resolve(bound, placement))
    except HeteroLabError as error:
        cause = " ".join(str(error.__cause__ or "").split())
        say(part=what, placement=placement.label, status=str(error), cause=cause[-600:])
        return None
    say(part=what, placement=placement.label, compile_s=round(time.perf_counter() - began, 2))
    return made


def generations(
    part: str, known: Any, scenario: Any, sessions: Iterator[tuple[str, Any]]
) -> list[str]:
    """Generate with each session as it comes; return the labels of those that ran."""
    prompt, expected, ran = known.prompt(scenario, 0), None, []
    for label, session in sessions:
        try:
            made = [
                generate(session, known, prompt, scenario.new_tokens) for _ in range(GENERATIONS)
            ]
        except (HeteroLabError, RuntimeError) as error:
            said = f"{error} {error.__cause__ or ''}"
            say(part=part, placement=label, status=" ".join(said.split())[-900:])
            continue
        last, _ = made[-1]
        expected = expected or last
        n_equal = int((last["token_ids"] == expected["token_ids"]).cumprod(axis=1).sum())
        # Up to the first other token, that of its step included, both saw the same text.
        same = slice(0, n_equal + 1)
        wanted = expected["logits"][:, same].astype(np.float64)
        off = np.linalg.norm(last["logits"][:, same] - wanted) / np.linalg.norm(wanted)
        say(
            part=part,
            placement=label,
            status="ok",
            prefill_ms=round(float(np.median([step_us[0] for _, step_us in made])) / 1e3, 3),
            tpot_ms=round(float(np.median([step_us[1:] for _, step_us in made])) / 1e3, 3),
            tokens_equal=f"{n_equal} of {last['token_ids'].size}",
            logits_error=float(f"{off:.3g}"),
        )
        if off < TOLERANCE:
            ran.append(label)
    return ran


def dynamic(model: Any, device: str, scenario: Any) -> bool:
    """Measure the model as it is; return whether the device and both splits were right."""
    bound, wanted = bind(model), placements(model, device)

    def sessions() -> Iterator[tuple[str, Any]]:
        for placement in wanted:
            made = compiled(bound, placement, "dynamic")
            if made is not None:
                yield placement.label, CompiledSession(made)

    ran = generations("dynamic", language_model(model), scenario, sessions())
    return len(ran) == len(wanted)


def static(model: Any, device: str, scenario: Any) -> bool:
    """Measure the two static models; return whether the device and both splits were right."""
    phases = static_phases(model, scenario)
    both = [bind(phases.prefill), bind(phases.decode)]
    pairs = list(zip(*(placements(b.model, device) for b in both), strict=True))

    def sessions() -> Iterator[tuple[str, Any]]:
        for pair in pairs:
            made = [compiled(b, p, "static") for b, p in zip(both, pair, strict=True)]
            if None not in made:
                yield pair[0].label, StaticSession(phases, *made)

    return len(generations("static", phases.language, scenario, sessions())) == len(pairs)


class Trial:
    """Parts of a model on a device, compared with the CPU."""

    def __init__(self, model: Any, device: str, values: dict[str, np.ndarray]):
        self.model, self.device, self.values = model, device, values

    def part(self, ends: Sequence[str], cut: Sequence[tuple[str, int]] = ()) -> Any:
        """Build the model of some ops and of what they need, inputs in the place of a cut."""

        copy = self.model.clone()
        by_name = {node.get_friendly_name(): node for node in copy.get_ordered_ops()}
        results = [op.result(port) for name in ends for port in by_name[name].outputs()]
        for name, port in cut:
            output = by_name[name].output(port)
            stands_in = op.parameter(output.get_partial_shape(), output.get_element_type())
            stands_in.set_friendly_name(f"{name}:{port}")
            output.replace(stands_in.output(0))
        assigns = {sink.get_variable_id(): sink for sink in copy.get_sinks()}
        needed, todo = {}, list(results)
        while todo:
            node = todo.pop()
            if node.get_friendly_name() in needed:
                continue
            needed[node.get_friendly_name()] = node
            todo.extend(value.get_node() for value in node.input_values())
            if node.get_type_name() == "ReadValue":
                todo.append(assigns[node.get_variable_id()])
        kinds = {kind: [n for n in needed.values() if n.get_type_name() == kind]
                 for kind in ("Parameter", "Assign")}  # fmt: skip
        build: Any = ov.Model
        return build(results, kinds["Assign"], kinds["Parameter"], "part")

    def run(self, made: Any, device: str) -> list[np.ndarray]:
        """Infer once."""

        properties = EXACT if device == "CPU" else F32
        request = shared_core().compile_model(made, device, properties).create_infer_request()
        given = [self.values[node.get_friendly_name()] for node in made.get_parameters()]
        return [np.array(value) for value in request.infer(given).values()]

    def fault(self, ends: Sequence[str], cut: Sequence[tuple[str, int]] = ()) -> str:
        """Return what is wrong with a part; empty if nothing is."""
        if cut:
            made = self.part([name for name, _ in cut])
            ports = [(name, at) for name, _ in cut for at in range(self._n_outputs(name))]
            found = dict(zip(ports, self.run(made, "CPU"), strict=True))
            self.values |= {f"{name}:{at}": value for (name, at), value in found.items()}
        expected = self.run(self.part(ends, cut), "CPU")
        try:
            got = self.run(self.part(ends, cut), self.device)
        except RuntimeError as error:
            return " ".join(str(error).split())[-700:]
        for wanted, found in zip(expected, got, strict=True):
            if wanted.shape != found.shape:
                return f"shape {list(found.shape)}, not {list(wanted.shape)}"
            norm = float(np.linalg.norm(wanted.astype(np.float64)))
            off = float(np.linalg.norm(found.astype(np.float64) - wanted))
            if not off <= TOLERANCE * max(norm, 1e-6):
                return f"wrong numbers: relative error {off / max(norm, 1e-6):.3g}"
        return ""

    def _n_outputs(self, name: str) -> int:
        nodes = self.model.get_ordered_ops()
        return next(len(n.outputs()) for n in nodes if n.get_friendly_name() == name)


def smallest(model: Any, device: str, scenario: Any) -> bool:
    """Look for the smallest part of the first layer that the device cannot run; say which it is.

    Ops are tried in their order, each with all that it needs, by bisection. Then as much as
    possible above the first one that fails is replaced by inputs.
    """
    known = language_model(model)
    fed = known.feed(known.prompt(scenario, 0), 0)
    names = [parameter.get_friendly_name() for parameter in model.get_parameters()]
    tried = Trial(model, device, dict(zip(names, fed, strict=True)))
    graph = op_graph(model)
    block_of = find_blocks(graph).of_op
    ops = [
        op for op in graph
        if op.index not in graph.constant_side and block_of[op.index] <= 0
        and op.type not in ("Parameter", "Constant", "Result", "Assign")
    ]  # fmt: skip
    low, high = 0, len(ops)  # all before low run; what ends with high - 1 does not
    if not tried.fault([op.name for op in ops]):
        say(part="smallest", status="the device runs the first layer")
        return True
    while high - low > 1:
        middle = (low + high) // 2
        wrong = tried.fault([op.name for op in ops[:middle]])
        low, high = (low, middle) if wrong else (middle, high)
    culprit = ops[high - 1]
    say(part="smallest", first_that_fails=culprit.name, type=culprit.type, n_ops=high)
    above: set[int] = {culprit.index}
    for _ in range(6):  # how many ops deep
        cut = {wire for index in above for wire in graph.ops[index].inputs if wire[0] not in above}
        cut = {wire for wire in cut if wire[0] not in graph.constant_side}
        wires = sorted((graph.ops[index].name, port) for index, port in cut)
        wrong = tried.fault([culprit.name], wires)
        if wrong:
            kept = [f"{graph.ops[index].type} {graph.ops[index].name}" for index in sorted(above)]
            shapes = {f"{name}:{port}": list(tried.values[f"{name}:{port}"].shape)
                      for name, port in wires}  # fmt: skip
            say(part="smallest", ops=kept, inputs=shapes, fault=wrong)
            return True
        above |= {index for index, _ in cut}
    say(part="smallest", ops="only with all above it", fault=tried.fault([culprit.name]))
    return True


def main() -> int:
    """Run the parts, each in a process of its own; return the exit code."""
    given = options(
        __doc__, model="small", device="GPU", emulate=False, rig=False, prompt=64, new=16,
        deadline=60.0, parts=list, pack=Path, only=str,
    )  # fmt: skip
    if given.pack:
        pack(given.model, given.pack)
        return 0
    if given.only:
        return measure(given)
    passed = {}
    for name in given.parts or PARTS:
        if name == "smallest" and passed.get("dynamic") and not given.parts:
            continue
        passed[name] = run_apart(name, sys.argv[1:], given.deadline)
    say(passed=passed)
    return int(not all(ok for name, ok in passed.items() if name != "dynamic"))


def run_apart(part: str, arguments: Sequence[str], deadline_s: float) -> bool:
    """Run a part in a process of its own; return whether it ended well."""
    command = [sys.executable, "-m", "tests.real_gpu.language", *arguments, "--only", part]
    try:
        code = subprocess.run(command, timeout=deadline_s).returncode
    except subprocess.TimeoutExpired:
        say(part=part, status=f"cut off after {deadline_s:.0f} s")
        return False
    if code not in (0, 1):
        say(part=part, status=f"the process ended with {code}")
    return code == 0


def measure(given: argparse.Namespace) -> int:
    """Run one part here."""
    if given.emulate:
        hl.emulate(given.device)
    with tempfile.TemporaryDirectory() as scratch:
        began = time.perf_counter()
        model = loaded(given.model, Path(scratch))
        say(
            part=given.only, model=given.model, n_ops=len(model.get_ops()),
            device=shared_core().get_property(given.device, "FULL_DEVICE_NAME"),
            load_s=round(time.perf_counter() - began, 1),
        )  # fmt: skip
        parts = {"dynamic": dynamic, "smallest": smallest, "static": static}
        return int(not parts[given.only](model, given.device, hl.Scenario(given.prompt, given.new)))


if __name__ == "__main__":
    sys.exit(main())
