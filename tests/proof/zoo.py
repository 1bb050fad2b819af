"""Odd models: every question ends right, or in a sentence that names the way out.

    python -m tests.proof.zoo [PATTERN OF "MODEL × QUESTION"] [--told]

Each model of :mod:`odd_models` has a process of its own, and is placed on ``HETERO:ACC,CPU`` with
an emulated ACC that lacks Relu. Both devices compute the same, so no verdict may be "different",
and outputs are those of plain OpenVINO for the model as it was built. A cell is bad if a verdict or
an output is wrong, if anything but a HeteroLabError is raised, or if the process ends. Prints the
bad cells, with ``--told`` the refusals as well, and how many there are. With HETERO_LAB_GUARD=0 in
the environment it takes half the time, and a crash of OpenVINO's is a bad cell.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1])]

import numpy as np  # noqa: E402
import openvino as ov  # noqa: E402
from odd_models import ODD_MODELS, RANDOM_MODELS, SHAPES, Twice  # noqa: E402

import hetero_lab as hl  # noqa: E402
from hetero_lab.devices.core import shared_core  # noqa: E402
from hetero_lab.model.read import input_name, output_names, prepare  # noqa: E402
from hetero_lab.runtime.inputs import generate_inputs  # noqa: E402

SPLIT, DEVICES, MOST_S = "HETERO:ACC,CPU", ["ACC", "CPU"], 300
FEW: dict[str, Any] = {"iterations": 10, "warmup": 0, "progress": False}
_NEAR = {"bf16": 2**-7, "f8e4m3": 2**-4, "f8e5m2": 2**-3, "nf4": 0.3}
# Where a status holds an error that nobody expected; one of the lab's own has no name there.
_RAW = re.compile(r"Traceback|\b[A-Z]\w*(Error|Exception)\b: ")


class WrongError(Exception):
    """A wrong answer."""


class Odd:
    """An odd model, and the questions that are asked about it: its public methods."""

    def __init__(self, name: str, directory: Path):
        self._name, self._directory = name, directory
        self._shapes: Any = SHAPES.get(name)
        self._model = ODD_MODELS[name]()
        bf16 = shared_core().get_property("CPU", "INFERENCE_PRECISION_HINT") == ov.Type.bf16
        self._nearly = 2**-6 if bf16 else 1e-3
        self._near: dict[str, float] = {}  # outputs of few bits

    @cached_property
    def _loaded(self) -> ov.Model:
        return hl.load(self._model, self._shapes)

    @cached_property
    def _inputs(self) -> dict[str, np.ndarray]:
        return generate_inputs(prepare(self._loaded), seed=0)

    @cached_property
    def _plain(self) -> dict[str, np.ndarray]:
        """The outputs of plain OpenVINO on the CPU, as f32 where NumPy lacks the type."""
        prepost, names = ov.preprocess.PrePostProcessor(self._model), output_names(self._model)
        for index, port in enumerate(self._model.outputs):
            kind = port.get_element_type().to_string()
            if re.match("bf16|f8|f4|nf4|[ui][1-6]$", kind):
                prepost.output(index).tensor().set_element_type(ov.Type.f32)
                self._near[names[index]] = _NEAR.get(kind, 1e-3)  # the plugin converts it but once
        model = prepost.build() if self._model.outputs else self._model
        if self._shapes:
            model.reshape(self._shapes)
        compiled = shared_core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        request = compiled.create_infer_request()
        for index, array in enumerate(self._inputs.values()):
            kind = compiled.inputs[index].get_element_type()
            tensor = ov.Tensor(kind, ov.Shape(array.shape))
            if kind == ov.Type.string:
                tensor = ov.Tensor(array)
            else:
                tensor.data.view(array.dtype)[...] = array
            request.set_input_tensor(index, tensor)
        request.infer()
        outputs = enumerate(names)
        return {n: np.array(_data(request.get_output_tensor(i))) for i, n in outputs}

    def _check(self, outputs: Mapping[str, np.ndarray]) -> None:
        if list(outputs) != list(self._plain):
            raise WrongError(f"outputs {list(outputs)} instead of {list(self._plain)}")
        for name, expected in self._plain.items():
            got = outputs[name]
            if self._name in RANDOM_MODELS and name != "sure":
                continue
            near, numbers = self._near.get(name, self._nearly), expected.dtype.kind == "f"
            same = np.allclose if numbers else np.array_equal
            how: dict[str, Any] = {}
            if numbers:
                finite = np.abs(expected[np.isfinite(expected)])
                how = {"rtol": near, "atol": near * finite.max(initial=1e-3), "equal_nan": True}
            if got.shape != expected.shape or not same(got, expected, **how):
                raise WrongError(f"{name!r}: {got.ravel()[:4]} instead of {expected.ravel()[:4]}")

    def load(self) -> Any:
        names = [input_name(port) for port in self._model.inputs]
        if [input_name(port) for port in self._loaded.inputs] != names:
            raise WrongError("other inputs")
        if len(self._loaded.outputs) != len(self._model.outputs):
            raise WrongError("other outputs")
        return self._loaded

    def graph(self) -> Any:
        return hl.views.placement_graph(SPLIT, self._loaded), hl.blocks(self._loaded)

    def partition(self) -> Any:
        found = hl.partition(self._loaded, SPLIT)
        return hl.Affinity.automatic(self._loaded, SPLIT), found

    def lint(self) -> Any:
        return hl.lint(self._loaded, SPLIT)

    def simplify(self) -> Any:
        return hl.simplify(self._loaded, SPLIT)

    def compile(self) -> Any:
        self._check(hl.compile(self._loaded, SPLIT)(self._inputs))

    def parallel(self) -> Any:
        with hl.ParallelExecutor(self._loaded, SPLIT) as executor:
            self._check(executor(self._inputs))

    def profile(self) -> Any:
        for place in ("CPU", SPLIT):
            found = hl.profile(self._loaded, place, **FEW)
            _agree(found)
        hl.views.placement_graph(found)
        return found, found.report(), found._repr_html_()

    def sweep(self) -> Any:
        found = hl.sweep(self._loaded, ["CPU", SPLIT], turns=2, progress=False)
        for label, verdict in zip(found.summary["label"], found.summary["verdict"], strict=True):
            if verdict in ("different", "not a number"):
                raise WrongError(f"{label}: {verdict}")
        return found, _said([*found.summary["status"]])

    def find_wrong(self) -> Any:
        found = hl.find_wrong(self._loaded, SPLIT, budget_s=10, progress=False)
        refused = "does not run" in found.verdict  # that is another answer
        if found.kind in ("op", "combination") and not refused:
            raise WrongError(found.kind)
        return found

    def freeze(self) -> Any:
        target = hl.freeze(
            self._loaded, SPLIT, self._directory / "f", tolerance=None, progress=False
        )
        written = self._directory / "outputs.npz"
        command = [sys.executable, "run.py", "inputs.npz", str(written)]
        done = subprocess.run(command, cwd=target, capture_output=True, text=True, check=False)
        if done.returncode:
            raise WrongError(f"run.py: {done.stderr.strip()}")
        with np.load(written) as outputs:
            self._check(dict(outputs))
        found = hl.verify(target, progress=False)
        if found.broken:
            raise WrongError(str(found))
        return found

    def evaluate(self) -> Any:
        found = hl.evaluate(self._loaded, SPLIT, [self._inputs] * 3, progress=False)
        if self._name not in RANDOM_MODELS and any(
            a.relative_error > self._nearly for a in found.answers
        ):
            raise WrongError(str(found))
        return found, found._repr_html_()

    def calibrate(self) -> Any:
        costs = hl.calibrate(self._loaded, DEVICES, budget_s=3, progress=False)
        return costs, hl.plan(self._loaded, costs)

    def advise(self) -> Any:
        found = hl.advise(self._loaded, DEVICES, budget_s=6, progress=False)
        return found, _said([*found.summary["status"]])

    def optimize(self) -> Any:
        found = hl.optimize(self._loaded, DEVICES, budget_s=5, progress=False)
        return found, _said([*found.summary["status"]])

    def tweaker(self) -> Any:
        tweaker = hl.AffinityTweaker(self._loaded, DEVICES, budget_s=2)
        if tweaker.affinity.ops:
            tweaker.select(ops=[tweaker.affinity.ops[-1]])
            tweaker.assign("CPU")
        tweaker.simplify()
        tweaker.measure(until_decided=False)
        return tweaker, tweaker.findings, tweaker.history

    def page(self) -> Any:
        found = hl.profile(self._loaded, SPLIT, counters=False, reference=False, **FEW)
        hl.views.page(found, self._directory / "page.html")
        found.export(self._directory / "profile")
        return hl.read_profile(self._directory / "profile")

    def save(self) -> Any:
        file = self._directory / "saved.xml"
        hl.save(self._loaded, SPLIT, file)
        placement = hl.read_placement(file)
        if placement.affinity != hl.Affinity.automatic(self._loaded, SPLIT):
            raise WrongError("another affinity")
        self._check(hl.compile(file, placement)(self._inputs))


QUESTIONS = [name for name in vars(Odd) if not name.startswith("_")]


def _data(tensor: ov.Tensor) -> Any:
    return tensor.str_data if tensor.get_element_type() == ov.Type.string else tensor.data


def _agree(profile: Any) -> None:
    if wrong := [a for a in profile.agreement if a.is_wrong]:
        raise WrongError(f"{profile.label}: {wrong[0]}")


def _said(statuses: list[str]) -> str:
    if raw := [status for status in statuses if _RAW.search(status)]:
        raise WrongError(f"status {raw[0]!r}")
    return ", ".join(dict.fromkeys(statuses))


def answer(question: Callable[[], Any]) -> tuple[str, str]:
    """Return how a question ends: "right", "told" or "BAD", and the text."""
    try:
        found = question()
        return "right", " | ".join(map(repr, found if isinstance(found, tuple) else (found,)))
    except hl.HeteroLabError as error:
        return "told", f"{type(error).__name__}: {error}"
    except WrongError as error:
        return "BAD", f"wrong: {error}"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        return "BAD", f"{type(error).__name__} at {place}: {error}"


def ask_here(name: str, questions: list[str], told: int) -> None:
    """Ask about one model; write how each question begins and ends to a pipe."""
    warnings.simplefilter("ignore")
    shared_core().add_extension(Twice)
    hl.emulate("ACC", unsupported={"Relu"})
    with tempfile.TemporaryDirectory() as directory, os.fdopen(told, "w") as pipe:
        odd = Odd(name, Path(directory))
        for question in questions:
            print(json.dumps([question]), file=pipe, flush=True)
            began = time.perf_counter()
            kind, text = answer(getattr(odd, question))
            seconds = time.perf_counter() - began
            print(json.dumps([question, kind, text, seconds]), file=pipe, flush=True)


def ask(name: str, questions: list[str]) -> Iterator[tuple[str, str, str, float]]:
    """Yield how each question about a model ends: question, kind, text and seconds.

    A model has a process of its own; if it ends, the next question has a new one.
    """
    left = list(questions)
    while left:
        reading, writing = os.pipe()
        child = os.fork()  # before anything of OpenVINO runs here
        if not child:
            os.close(reading)
            signal.alarm(MOST_S)
            try:
                ask_here(name, left, writing)
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            for line in pipe:
                question, *ended = json.loads(line)
                if ended:
                    left.remove(question)
                    yield question, ended[0], ended[1], ended[2]
        _, status = os.waitpid(child, 0)
        if left and os.WIFSIGNALED(status):
            end = signal.Signals(os.WTERMSIG(status)).name
            yield left.pop(0), "BAD", f"the process ended with {end}", 0.0
        elif left:
            yield left.pop(0), "BAD", "the process ended", 0.0


def main() -> int:
    """Ask; return 1 if a cell is bad."""
    told = "--told" in sys.argv
    pattern = "".join(argument for argument in sys.argv[1:] if argument != "--told")
    count: Counter[str] = Counter()
    _ = hl.AffinityTweaker, hl.views.page, hl.advise, hl.verify, hl.ParallelExecutor
    with tempfile.TemporaryDirectory() as cache:
        os.environ |= {"HETERO_LAB_CACHE": cache, "CI": "true"}
        for name in ODD_MODELS:
            wanted = [q for q in QUESTIONS if re.search(pattern, f"{name} × {q}")]
            for question, kind, text, seconds in ask(name, wanted):
                count[kind] += 1
                if kind == "BAD" or (told and kind == "told"):
                    said = " ".join(text.split())
                    print(f"{kind:5} {name} × {question} ({seconds:.1f} s): {said}", flush=True)
    print(f"{count.total()} cells: " + ", ".join(f"{n} {kind}" for kind, n in count.items()))
    return bool(count["BAD"])


if __name__ == "__main__":
    sys.exit(main())
