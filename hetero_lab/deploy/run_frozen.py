"""Run a frozen placement: python run.py [inputs.npz [outputs.npz]]. Needs openvino and numpy.

A language model generates text: python run.py "The capital of France is" [NEW_TOKENS], which also
needs openvino-tokenizers; or tokens, from ``input_ids`` in inputs.npz.

``python run.py --observe DIRECTORY TARGET OPTIONS`` records the compiled partition, the outputs and
the latency on this machine; ``hetero-lab verify`` compares them with contract.json.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", sys.flags.isolated):
    del sys.path[0]  # the files beside this one are data: no import may run them

import contextlib
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import openvino as ov

from hetero_lab.llm.tokenizer import Tokenizer
from hetero_lab.runtime.place_ops import check_properties
from hetero_lab.runtime.placed_model import (
    compile_noted,
    core_for,
    file_of,
    header_text,
    load as load,
    read_noted,
    read_npz,
)
from hetero_lab.runtime.tensors import can_share, checked_inputs, has_nan, infer
from hetero_lab.terminal import plain_text

_DISCARDED, _TIMED = 2, 10  # inferences of a turn, as in a profile
_WARM_UP_S = 0.3  # some tenths, as a whole process has a few seconds for its turns
# To find a free core: the most cores to try, inferences on each, and the share of the budget.
_MOST_CORES, _LOOKS, _LOOK = 8, 5, 0.2
_NEW_TOKENS = 32  # by default: a sentence or two


def run(directory: str | os.PathLike[str], inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Infer once: input name → array in, output name → array out.

    A language model takes ``input_ids`` and generates ``token_ids``.
    """
    model, plan = read_noted(directory)
    if "generation" in plan:
        if {*inputs} != {"input_ids"}:
            raise ValueError(f"The input is input_ids, and the given arrays are {[*inputs]}.")
        tokens = _tokens(model, plan, np.asarray(inputs["input_ids"]), _NEW_TOKENS)
        return {"token_ids": np.concatenate([*tokens], 1)}
    arrays = checked_inputs(plan["inputs"], model.inputs, inputs)
    with_nan = [name for name, one in zip(plan["inputs"], arrays, strict=True) if has_nan([one])]
    if with_nan and not has_nan(read_npz(Path(directory) / "inputs.npz").values()):
        raise ValueError(f"There is NaN in {with_nan}, and none in the example, inputs.npz.")
    outputs, _ = _infer(compile_noted(model, core_for(plan)), plan, arrays)
    return dict(zip(plan["outputs"], outputs, strict=True))


def generate(
    directory: str | os.PathLike[str], ids: np.ndarray, new_tokens: int = _NEW_TOKENS
) -> np.ndarray:
    """Generate with a frozen language model, always the likeliest token.

    Takes token ids of shape ``[batch, n]`` and returns ``[batch, new_tokens]``.
    """
    return np.concatenate([*_tokens(*read_noted(directory), ids, new_tokens)], 1)


def text(
    directory: str | os.PathLike[str], prompt: str, new_tokens: int = _NEW_TOKENS
) -> Iterator[str]:
    """Yield the continuation of a text by a frozen language model, up to its end token."""
    if not prompt:
        raise ValueError("The prompt is empty. Give the beginning of a text.")
    words = Tokenizer(directory)
    token_ids: list[int] = []
    previous = ""
    for ids in _tokens(*read_noted(directory), words.encode(prompt), new_tokens):
        if int(ids[0, 0]) == words.end:
            return
        token_ids.append(int(ids[0, 0]))
        whole = words.decode(token_ids)
        if not whole.endswith("\ufffd"):  # else a character of several tokens is incomplete
            yield whole[len(previous) :]
            previous = whole


def observe(directory: str | os.PathLike[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Compile, run the requests of requests.npz, and time turns beside the reference.

    ``options`` has ``turns``, ``budget_s``, and ``reference``: device and properties, or ``None``.
    Returns the observations, up to the ``step`` that failed with an ``error``, if one did.
    """
    findings: dict[str, Any] = {
        "openvino_version": ov.get_version(),
        "system": platform.platform(),
        "host": platform.node(),
        "n_cpus": os.cpu_count() or 1,
        "error": "",
    }
    try:
        findings["step"] = "compile"
        model, plan = read_noted(directory)
        findings["step"] = "devices"
        core = core_for(plan)
        names = [*core.available_devices, *plan["emulated"]]
        findings["devices"] = {name: _full_name(core, name) for name in dict.fromkeys(names)}
        findings["step"] = "compile"
        compiled = compile_noted(model, core)
        if options["reference"] is not None:
            check_properties(options["reference"][1])
        findings["header"] = header_text(compiled)
        findings["execution_devices"] = list(compiled.get_property("EXECUTION_DEVICES"))
        findings["step"] = "outputs"
        findings["outputs"] = [_infer(compiled, plan, inputs)[0] for inputs in _requests(directory)]
        if options["reference"] is not None:
            findings["step"] = "reference"
            model = core.read_model(file_of(Path(directory) / "model.xml"))
            reference = core.compile_model(model, *options["reference"])
            findings["step"] = "latency"
            findings.update(_time_beside_reference(directory, compiled, reference, plan, options))
        findings["step"] = ""
    except Exception as error:  # any failure is an observation
        message = str(error).strip()
        findings["error"] = message.splitlines()[-1] if message else repr(error)
    return findings


def _full_name(core: ov.Core, name: str) -> str:
    with contextlib.suppress(Exception):
        return str(core.get_property(name, "FULL_DEVICE_NAME"))
    return ""


def by_request(arrays: Mapping[str, np.ndarray], kind: str) -> list[list[np.ndarray]]:
    """Return the arrays of each request, called ``in0.0``, ``in0.1``, ``in1.0``… for ``in``."""
    requests: dict[int, dict[int, np.ndarray]] = {}
    for key, array in arrays.items():
        number, _, index = key.lstrip("inout").partition(".")
        row = requests.setdefault(int(number), {})  # empty, if the model has no inputs
        if key.startswith(kind):
            row[int(index)] = array
    return [[array for _, array in sorted(row.items())] for _, row in sorted(requests.items())]


def _requests(directory: str | os.PathLike[str]) -> list[list[np.ndarray]]:
    return by_request(read_npz(Path(directory) / "requests.npz"), "in")


def _infer(
    compiled: ov.CompiledModel, plan: Mapping[str, Any], inputs: list[np.ndarray]
) -> tuple[list[np.ndarray], Callable[[], object]]:
    """Infer in a new request; return the outputs, and a function that infers again."""
    request = compiled.create_infer_request()
    if "generation" in plan:
        again = partial(_logits, request, plan["generation"], *inputs)
        return [again()], again
    outputs = infer(request, inputs)
    return outputs, partial(request.infer, share_outputs=can_share(compiled.outputs))


def _step(
    request: ov.InferRequest, generation: Mapping[str, Any], ids: np.ndarray, past: int
) -> np.ndarray:
    """Append tokens to sequences of ``past`` tokens; return the logits of the next one."""
    batch, n = ids.shape
    tensors = {
        "input_ids": ids,
        "attention_mask": np.ones((batch, past + n)),
        "position_ids": np.tile(np.arange(past, past + n), (batch, 1)),
        "beam_idx": np.arange(batch),
    }
    for index, (name, kind) in enumerate(generation["inputs"]):
        request.set_input_tensor(index, ov.Tensor(tensors[name].astype(kind)))
    request.infer(share_outputs=True)
    return request.get_output_tensor(generation["logits"]).data[:, -1]


def _logits(
    request: ov.InferRequest,
    generation: Mapping[str, Any],
    prompt: np.ndarray,
    tokens: np.ndarray,
) -> np.ndarray:
    """Return the logits behind each of ``tokens``, given the tokens before it.

    Unlike in a generation, equally likely tokens cannot change the logits after them.
    """
    request.reset_state()
    steps = [prompt, *(tokens[:, i : i + 1] for i in range(tokens.shape[1] - 1))]
    past, logits = 0, []
    for ids in steps:
        logits.append(np.array(_step(request, generation, ids, past), np.float32))
        past += ids.shape[1]
    return np.stack(logits, 1)


def _tokens(
    model: ov.Model, plan: Mapping[str, Any], ids: np.ndarray, new_tokens: int
) -> Iterator[np.ndarray]:
    """Yield the likeliest next token of each sequence, ``[batch, 1]``, step by step."""
    if "generation" not in plan:
        raise ValueError(f"{plan['label']} is no language model, so it cannot generate.")
    if ids.ndim != 2 or not ids.size or ids.dtype.kind not in "iu":
        raise ValueError("Token ids are whole numbers of shape [batch, n].")
    generation, past = plan["generation"], 0
    limit = generation["context_tokens"]
    if limit is not None and ids.shape[1] + new_tokens > limit:
        raise ValueError(
            f"{ids.shape[1]} tokens and {new_tokens} new ones are longer than the model's context "
            f"of {limit} tokens."
        )
    request = compile_noted(model, core_for(plan)).create_infer_request()
    for _ in range(new_tokens):
        logits = _step(request, generation, ids, past)
        past += ids.shape[1]
        ids = logits.argmax(-1)[:, None]
        yield ids


def _time_beside_reference(
    directory: str | os.PathLike[str],
    compiled: ov.CompiledModel,
    reference: ov.CompiledModel,
    plan: Mapping[str, Any],
    options: Mapping[str, Any],
) -> dict[str, Any]:
    inputs = _requests(directory)[0]
    runs = [_infer(one, plan, inputs)[1] for one in (compiled, reference)]
    until = perf_counter() + options["budget_s"]
    each_s = max(_warm_up(run) for run in runs)
    # A reference on one thread gets a free core, so that load on a device does not slow it.
    alone = options["reference"][1].get("INFERENCE_NUM_THREADS") == 1
    cores = None, _free_core(runs[1], each_s, options["budget_s"]) if alone else None
    affordable = options["budget_s"] / (options["turns"] * len(runs) * each_s)
    timed = int(min(_TIMED, max(1, affordable - _DISCARDED)))
    turns: list[list[list[float]]] = [[], []]
    while len(turns[1]) < options["turns"] and (perf_counter() < until or len(turns[1]) < 3):
        order = (0, 1) if len(turns[1]) % 2 else (1, 0)
        for index in order:
            turns[index].append(_turn(runs[index], timed, cores[index]))
    return {"turns_us": turns[0], "reference_us": turns[1]}


def _free_core(run: Callable[[], object], each_s: float, budget_s: float) -> int | None:
    """Return the core where ``run``, which computes in the calling thread, is fastest now.

    ``None`` if threads cannot be bound to cores, or if there is no time to try.
    """
    cores = sorted(getattr(os, "sched_getaffinity", lambda _: ())(0))
    cores = cores[:: max(1, len(cores) // _MOST_CORES)][:_MOST_CORES]
    if len(cores) < 2 or len(cores) * (_DISCARDED + _LOOKS) * each_s > _LOOK * budget_s:
        return None
    return min(cores, key=lambda core: float(np.median(_turn(run, _LOOKS, core))))


@contextlib.contextmanager
def _on_core(core: int | None) -> Iterator[None]:
    """Keep this thread on a core, unless it is ``None``."""
    if core is None or sys.platform != "linux":
        yield
        return
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, everywhere)


def _warm_up(run: Callable[[], object]) -> float:
    began, n = perf_counter(), 0
    while not n or perf_counter() - began < _WARM_UP_S:
        run()
        n += 1
    return (perf_counter() - began) / n


def _turn(run: Callable[[], object], timed: int, core: int | None = None) -> list[float]:
    samples = []
    with _on_core(core):
        for _ in range(_DISCARDED):
            run()
        for _ in range(timed):
            began = perf_counter()
            run()
            samples.append((perf_counter() - began) * 1e6)
    return samples


def main() -> None:
    """Run on the inputs of the first argument; write the outputs to the second."""
    sys.stdout.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]
    try:
        _run_here()
    except Exception as error:  # its text may be that of a file
        print(f"run.py: {plain_text(' '.join(str(error).split()))}", file=sys.stderr)
        sys.exit(2)


def _run_here() -> None:
    here = Path(__file__).parent
    if sys.argv[1:2] in (["-h"], ["--help"]):
        print(__doc__)
        return
    if sys.argv[1:2] == ["--observe"]:
        _observe_into(*sys.argv[2:])
        return
    is_file = len(sys.argv) > 1 and sys.argv[1].endswith(".npz") and Path(sys.argv[1]).is_file()
    if len(sys.argv) > 1 and not is_file and "generation" in read_noted(here)[1]:
        for more in text(here, sys.argv[1], *map(int, sys.argv[2:3])):
            print(plain_text(more), end="", flush=True)
        print()
        return
    outputs = run(here, read_npz(sys.argv[1] if len(sys.argv) > 1 else here / "inputs.npz"))
    for name, value in outputs.items():
        print(plain_text(" ".join(name.split())), value.shape, value.dtype, value.ravel()[:5])
    if len(sys.argv) > 2:
        np.savez(sys.argv[2], **outputs)  # pyright: ignore[reportArgumentType]


def _observe_into(directory: str, target: str, options: str) -> None:
    """Write the observations of a directory into another: observed.json and outputs.npz."""
    findings = observe(directory, json.loads(options))
    outputs = {
        f"out{number}.{index}": array
        for number, arrays in enumerate(findings.pop("outputs", []))
        for index, array in enumerate(arrays)
    }
    np.savez(Path(target) / "outputs.npz", **outputs)  # pyright: ignore[reportArgumentType]
    (Path(target) / "observed.json").write_text(json.dumps(findings), encoding="utf-8")


if __name__ == "__main__":
    main()
