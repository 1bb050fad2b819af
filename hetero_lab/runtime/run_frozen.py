"""Run a frozen placement: python run.py [inputs.npz [outputs.npz]]. Needs openvino and numpy.

``python run.py --observe DIRECTORY`` tells what is compiled here, what comes out and how long it
takes; ``hetero-lab verify`` compares that with contract.json.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import openvino as ov

_DISCARDED, _TIMED, _WARM_UP_S = 2, 10, 0.3


def load(directory: str | os.PathLike[str]) -> tuple[ov.CompiledModel, dict[str, Any]]:
    """Compile the frozen placement; return it with what placement.json says."""
    plan = _plan(directory)
    return _compile(_core(plan), directory, plan), plan


def run(directory: str | os.PathLike[str], inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Infer once: input name → array in, output name → array out."""
    compiled, plan = load(directory)
    results = compiled([np.asarray(inputs[name]) for name in plan["inputs"]])
    return {name: np.array(results[index]) for index, name in enumerate(plan["outputs"])}


def observe(directory: str | os.PathLike[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Compile, run the requests of requests.npz, and time turns beside the reference.

    Parameters
    ----------
    options
        ``turns``, ``budget_s``, and ``reference``: device and properties, or ``None``.

    Returns
    -------
    dict
        What is seen, up to the ``step`` that failed with an ``error``, if one did.
    """
    plan = _plan(directory)
    seen: dict[str, Any] = {
        "openvino_version": ov.get_version(),
        "python_version": platform.python_version(),
        "system": platform.platform(),
        "host": platform.node(),
        "n_cpus": os.cpu_count() or 1,
        "error": "",
    }
    try:
        seen["step"] = "devices"
        core = _core(plan)
        names = [*core.available_devices, *plan["emulated"]]
        seen["devices"] = {name: _full_name(core, name) for name in dict.fromkeys(names)}
        seen["step"] = "compile"
        compiled = _compile(core, directory, plan)
        seen["header"] = _header(compiled)
        seen["execution_devices"] = list(compiled.get_property("EXECUTION_DEVICES"))
        seen["step"] = "outputs"
        seen["outputs"] = [_infer(compiled, inputs)[0] for inputs in _requests(directory)]
        seen["step"] = "latency"
        if options["reference"] is not None:
            seen.update(_time_beside_reference(core, directory, compiled, options))
        seen["step"] = ""
    except Exception as error:  # whatever breaks is what the caller wants to know
        seen["error"] = str(error).strip().splitlines()[-1] if str(error).strip() else repr(error)
    return seen


def _plan(directory: str | os.PathLike[str]) -> dict[str, Any]:
    return json.loads((Path(directory) / "placement.json").read_text(encoding="utf-8"))


def _core(plan: Mapping[str, Any]) -> ov.Core:
    core = ov.Core()
    for name, (plugin, internal) in plan["emulated"].items():
        proxy = {"ALIAS": name, "PRIORITY": "0", "INTERNAL_NAME": internal}
        core.register_plugin(
            plugin, internal, {f"PROXY_CONFIGURATION_{k}": v for k, v in proxy.items()}
        )
    return core


def _compile(
    core: ov.Core, directory: str | os.PathLike[str], plan: Mapping[str, Any]
) -> ov.CompiledModel:
    model = core.read_model(Path(directory) / "model.xml")
    for node in model.get_ordered_ops():
        node.get_rt_info()["affinity"] = plan["affinity"][node.get_friendly_name()]
    return core.compile_model(model, plan["target"], plan["properties"])


def _full_name(core: ov.Core, name: str) -> str:
    with contextlib.suppress(Exception):
        return str(core.get_property(name, "FULL_DEVICE_NAME"))
    return ""


def _header(compiled: ov.CompiledModel) -> str:
    """Return the XML that HETERO's export begins with: the submodels and how they are wired."""
    stream = _HeaderOnly()
    with contextlib.suppress(Exception):  # it takes no more than the header
        compiled.export_model(stream)
    raw = stream.getvalue()
    start, end = raw.find(b"<hetero"), raw.find(b"</hetero>")
    return raw[start : end + 9].decode() if 0 <= start < end else ""


class _HeaderOnly(io.BytesIO):
    def write(self, data: Any) -> int:
        if b"</hetero>" in self.getvalue():
            raise BufferError("the header is whole")
        return super().write(data)


def _requests(directory: str | os.PathLike[str]) -> Iterator[list[np.ndarray]]:
    """Yield the inputs of each stored request, in the model's order."""
    with np.load(Path(directory) / "requests.npz") as file:
        keys = [key for key in file.files if key.startswith("in")]
        numbers = sorted({int(key[2:].partition(".")[0]) for key in keys})
        for number in numbers:
            n_inputs = sum(key.startswith(f"in{number}.") for key in keys)
            yield [file[f"in{number}.{index}"] for index in range(n_inputs)]


def _infer(
    compiled: ov.CompiledModel, inputs: list[np.ndarray]
) -> tuple[list[np.ndarray], Callable[[], object]]:
    """Infer in a request of its own; return the outputs, and what infers once more."""
    request = compiled.create_infer_request()
    request.infer(list(inputs))
    outputs = [np.array(request.get_output_tensor(i).data) for i in range(len(compiled.outputs))]
    return outputs, lambda: request.infer(share_outputs=True)


def _time_beside_reference(
    core: ov.Core,
    directory: str | os.PathLike[str],
    compiled: ov.CompiledModel,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    device, properties = options["reference"]
    model = core.read_model(Path(directory) / "model.xml")
    reference = core.compile_model(model, device, properties)
    inputs = next(iter(_requests(directory)))
    runs = [_infer(one, inputs)[1] for one in (compiled, reference)]
    until = perf_counter() + options["budget_s"]
    each_s = max(_warm_up(run) for run in runs)
    affordable = options["budget_s"] / (options["turns"] * len(runs) * each_s)
    timed = int(min(_TIMED, max(1, affordable - _DISCARDED)))
    turns: list[list[list[float]]] = [[], []]
    while len(turns[1]) < options["turns"] and (perf_counter() < until or len(turns[1]) < 3):
        order = (0, 1) if len(turns[1]) % 2 else (1, 0)
        for index in order:
            turns[index].append(_turn(runs[index], timed))
    return {"turns_us": turns[0], "reference_us": turns[1]}


def _warm_up(run: Callable[[], object]) -> float:
    began, done = perf_counter(), 0
    while not done or perf_counter() - began < _WARM_UP_S:
        run()
        done += 1
    return (perf_counter() - began) / done


def _turn(run: Callable[[], object], timed: int) -> list[float]:
    for _ in range(_DISCARDED):
        run()
    samples = []
    for _ in range(timed):
        began = perf_counter()
        run()
        samples.append((perf_counter() - began) * 1e6)
    return samples


def main() -> None:
    """Run on the inputs of the first argument; write the outputs to the second."""
    here = Path(__file__).parent
    if sys.argv[1:2] == ["--observe"]:
        _observe_into(*sys.argv[2:])
        return
    outputs = run(here, np.load(sys.argv[1] if len(sys.argv) > 1 else here / "inputs.npz"))
    for name, value in outputs.items():
        print(name, value.shape, value.dtype, value.ravel()[:5])
    if len(sys.argv) > 2:
        np.savez(sys.argv[2], **outputs)  # pyright: ignore[reportArgumentType]


def _observe_into(directory: str, target: str, options: str) -> None:
    """Write what is seen of a directory into another: observed.json and outputs.npz."""
    seen = observe(directory, json.loads(options))
    outputs = {
        f"out{number}.{index}": array
        for number, arrays in enumerate(seen.pop("outputs", []))
        for index, array in enumerate(arrays)
    }
    np.savez(Path(target) / "outputs.npz", **outputs)  # pyright: ignore[reportArgumentType]
    (Path(target) / "observed.json").write_text(json.dumps(seen), encoding="utf-8")


if __name__ == "__main__":
    main()
