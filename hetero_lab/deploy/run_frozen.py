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
import io
import json
import os
import platform
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import openvino as ov

_DISCARDED, _TIMED, _WARM_UP_S = 2, 10, 0.3
# To find a free core: the most cores to try, inferences on each, and the share of the budget.
_MOST_CORES, _LOOKS, _LOOK = 8, 5, 0.2
_NEW_TOKENS = 32
NOTE = ["hetero_lab", "placement"]  # in the model's file
_MOST_XML, _MOST_UNPACKED = 1 << 26, 1 << 28  # bytes
_TOKENIZER, _DETOKENIZER = "openvino_tokenizer.xml", "openvino_detokenizer.xml"


def load(directory: str | os.PathLike[str]) -> tuple[ov.CompiledModel, dict[str, Any]]:
    """Compile the frozen placement; return it with what the model's file says of it."""
    model, plan = _read(directory)
    return _compile(model, _core_for(plan)), plan


def run(directory: str | os.PathLike[str], inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Infer once: input name → array in, output name → array out.

    A language model takes ``input_ids`` and generates ``token_ids``.
    """
    model, plan = _read(directory)
    if "generation" in plan:
        made = _tokens(model, plan, np.asarray(inputs["input_ids"]), _NEW_TOKENS)
        return {"token_ids": np.concatenate([*made], 1)}
    compiled = _compile(model, _core_for(plan))
    results = compiled([np.asarray(inputs[name]) for name in plan["inputs"]])
    return {name: np.array(results[index]) for index, name in enumerate(plan["outputs"])}


def generate(
    directory: str | os.PathLike[str], ids: np.ndarray, new_tokens: int = _NEW_TOKENS
) -> np.ndarray:
    """Generate with a frozen language model, always the likeliest token.

    Takes token ids of shape ``[batch, n]`` and returns ``[batch, new_tokens]``.
    """
    return np.concatenate([*_tokens(*_read(directory), ids, new_tokens)], 1)


def text(
    directory: str | os.PathLike[str], prompt: str, new_tokens: int = _NEW_TOKENS
) -> Iterator[str]:
    """Yield the continuation of a text by a frozen language model, up to its end token."""
    if not prompt:
        raise ValueError("The prompt is empty. Give the beginning of a text.")
    words = Tokenizer(directory)
    made: list[int] = []
    told = ""
    for ids in _tokens(*_read(directory), words.encode(prompt), new_tokens):
        if int(ids[0, 0]) == words.end:
            return
        made.append(int(ids[0, 0]))
        whole = words.decode(made)
        if not whole.endswith("\ufffd"):  # else a character of several tokens is incomplete
            yield whole[len(told) :]
            told = whole


class Tokenizer:
    """The tokenizer in a directory, as openvino-tokenizers writes it.

    ``end`` is the token that ends a text; ``None`` if the tokenizer does not define it.
    """

    def __init__(self, directory: str | os.PathLike[str]):
        models = [Path(directory) / name for name in (_TOKENIZER, _DETOKENIZER)]
        if missing := [path.name for path in models if not path.is_file()]:
            raise FileNotFoundError(
                f"{directory} has no {' and no '.join(missing)}, so it cannot read text. Give "
                "token ids instead."
            )
        try:
            import openvino_tokenizers  # noqa: F401  # pyright: ignore  # gives Core its ops
        except ImportError as error:
            raise ModuleNotFoundError(
                "Text needs openvino-tokenizers of the same version as openvino: "
                f"pip install openvino-tokenizers=={ov.__version__.partition('-')[0]}.*"
            ) from error
        core = _core("tokenizers")
        encoder, decoder = (core.read_model(file_of(path, _MOST_XML)) for path in models)
        key = "eos_token_id"
        self.end = int(encoder.get_rt_info(key).astype(str)) if encoder.has_rt_info(key) else None
        self._encoder, self._decoder = (core.compile_model(m, "CPU") for m in (encoder, decoder))

    def encode(self, text: str) -> np.ndarray:
        """Return the token ids of a text, int64 of shape ``[1, n]``."""
        return np.array(self._encoder([text])["input_ids"], np.int64)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Return the text of the token ids of one sequence."""
        return str(self._decoder([np.array(ids, np.int64).reshape(1, -1)])[0][0])


def observe(directory: str | os.PathLike[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Compile, run the requests of requests.npz, and time turns beside the reference.

    ``options`` has ``turns``, ``budget_s``, and ``reference``: device and properties, or ``None``.
    Returns the observations, up to the ``step`` that failed with an ``error``, if one did.
    """
    seen: dict[str, Any] = {
        "openvino_version": ov.get_version(),
        "python_version": platform.python_version(),
        "system": platform.platform(),
        "host": platform.node(),
        "n_cpus": os.cpu_count() or 1,
        "error": "",
    }
    try:
        seen["step"] = "compile"
        model, plan = _read(directory)
        seen["step"] = "devices"
        core = _core_for(plan)
        names = [*core.available_devices, *plan["emulated"]]
        seen["devices"] = {name: _full_name(core, name) for name in dict.fromkeys(names)}
        seen["step"] = "compile"
        compiled = _compile(model, core)
        if options["reference"] is not None:
            check_properties(options["reference"][1])
        seen["header"] = header_text(compiled)
        seen["execution_devices"] = list(compiled.get_property("EXECUTION_DEVICES"))
        seen["step"] = "outputs"
        seen["outputs"] = [_infer(compiled, plan, inputs)[0] for inputs in _requests(directory)]
        if options["reference"] is not None:
            seen["step"] = "reference"
            model = core.read_model(file_of(Path(directory) / "model.xml"))
            reference = core.compile_model(model, *options["reference"])
            seen["step"] = "latency"
            seen.update(_time_beside_reference(directory, compiled, reference, plan, options))
        seen["step"] = ""
    except Exception as error:  # any failure is an observation
        seen["error"] = str(error).strip().splitlines()[-1] if str(error).strip() else repr(error)
    return seen


def file_of(path: str | os.PathLike[str], most: int | None = None) -> Path:
    """Return a path; ValueError unless it is a regular file of its directory, not too large."""
    given, real = Path(path), Path(os.path.realpath(path))
    if given.suffix == ".xml" and os.path.lexists(weights := given.with_suffix(".bin")):
        file_of(weights)
    size = real.stat().st_size  # FileNotFoundError, if there is none
    if not real.is_file() or not real.is_relative_to(os.path.realpath(given.parent)):
        raise ValueError(f"{given.name!r} is no regular file of its directory.")
    if most is not None and size > most:
        raise ValueError(f"{given.name!r} is larger than {most >> 20} MiB.")
    return given


def read_npz(path: str | os.PathLike[str], begin: str = "") -> dict[str, np.ndarray]:
    """Return the arrays whose names ``begin`` so; ValueError if far larger than their file."""
    file = file_of(path)
    try:
        with zipfile.ZipFile(file) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        there = os.stat(file)  # a file with holes takes less room than its size
        room = min(there.st_size, 512 * getattr(there, "st_blocks", there.st_size))
        if unpacked > max(room, _MOST_UNPACKED):
            raise ValueError(f"it unpacks to {unpacked >> 20} MiB; write it with numpy.savez")
        with np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files if name.startswith(begin)}
    except (MemoryError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{file.name!r} cannot be read as .npz: {error}") from error


def read_placed(file: str | os.PathLike[str]) -> ov.Model:
    """Read a model with the placement that its file carries."""
    return _core("models").read_model(file_of(file, _MOST_XML))


def check_plugins(emulated: Mapping[str, Sequence[str]]) -> None:
    """Raise ValueError unless these plugins are those that ``hetero_lab.emulate`` registers."""
    taken = "(CPU|GPU|NPU|AUTO|MULTI|HETERO|BATCH|PROXY|TEMPLATE)"
    for name, (plugin, internal) in emulated.items():
        known = [
            (f"openvino_intel_{b.lower()}_plugin", f"{name}_{b}") for b in ("CPU", "GPU", "NPU")
        ]
        if (plugin, internal) not in known or not re.fullmatch(
            f"(?!{taken}$)[A-Z][A-Z0-9_]*", name
        ):
            raise ValueError(
                f"the device {name!r} has a plugin {plugin!r}, {internal!r} of its own"
            )


def check_properties(properties: Mapping[str, Any]) -> None:
    """Raise ValueError for a property that a file must not set: it may take a path, or write."""
    allowed = re.findall(r"\w+", """
        ACTIVATIONS_SCALE_FACTOR ALLOW_AUTO_BATCHING AUTO_BATCH_TIMEOUT COMPILATION_NUM_THREADS
        CPU_DENORMALS_OPTIMIZATION CPU_SPARSE_WEIGHTS_DECOMPRESSION_RATE DEVICE_BIND_BUFFER
        DEVICE_ID DYNAMIC_QUANTIZATION_GROUP_SIZE ENABLE_CPU_PINNING ENABLE_CPU_RESERVATION
        ENABLE_HYPER_THREADING ENABLE_RUNTIME_FALLBACK ENABLE_STARTUP_FALLBACK
        ENABLE_TENSOR_PARALLEL EXCLUSIVE_ASYNC_REQUESTS EXECUTION_MODE_HINT
        GPU_DISABLE_WINOGRAD_CONVOLUTION GPU_ENABLE_LARGE_ALLOCATIONS GPU_ENABLE_LOOP_UNROLLING
        GPU_ENABLE_SDPA_OPTIMIZATION GPU_HOST_TASK_PRIORITY GPU_QUEUE_PRIORITY GPU_QUEUE_THROTTLE
        INFERENCE_NUM_THREADS INFERENCE_PRECISION_HINT KEY_CACHE_GROUP_SIZE KEY_CACHE_PRECISION
        KV_CACHE_PRECISION LOW_POWER_DEVICE MODEL_DISTRIBUTION_POLICY MODEL_PRIORITY
        NPU_BYPASS_UMD_CACHING NPU_COMPILATION_MODE NPU_COMPILER_TYPE NPU_DEFER_WEIGHTS_LOAD
        NPU_PLATFORM NPU_TILES NPU_TURBO NUM_STREAMS PERFORMANCE_HINT PERFORMANCE_HINT_NUM_REQUESTS
        PERF_COUNT QUERY_MODEL_RATIO SCHEDULE_POLICY SCHEDULING_CORE_TYPE TBB_PARTITIONER
        VALUE_CACHE_GROUP_SIZE VALUE_CACHE_PRECISION
    """)  # fmt: skip
    for key, value in properties.items():
        by_device = value.values() if isinstance(value, dict) else [value]
        if key == "DEVICE_PROPERTIES" and all(isinstance(each, dict) for each in by_device):
            for of_device in by_device:
                check_properties(of_device)
        elif key not in allowed or not re.fullmatch(r"[\w.:,+ -]*", str(value), re.A):
            raise ValueError(f"a file must not set the property {key!r} to {value!r}")


def noted(model: ov.Model) -> dict[str, Any]:
    """Return the placement in a model's file; ValueError for one that could load or write files."""
    placed = json.loads(model.get_rt_info(["hetero_lab", "placement"]).astype(str))
    check_plugins(placed["emulated"])
    check_properties(placed["properties"])
    return placed


def place_ops(model: ov.Model, core: ov.Core) -> tuple[str, dict[str, Any]]:
    """Label the ops of a model as its file says; return the device and the properties."""
    placed = noted(model)
    devices, ops, weights = dict(placed["affinity"]), model.get_ordered_ops(), set()
    for op in ops:  # constants are not named there, nor what compression adds to them
        sources = {value.get_node().get_friendly_name() for value in op.input_values()}
        if op.get_friendly_name() not in devices and sources <= weights:
            weights.add(op.get_friendly_name())
    here = {op.get_friendly_name() for op in ops} - weights
    if here != devices.keys():
        lacks, new = sorted(devices.keys() - here)[:8], sorted(here - devices.keys())[:8]
        raise ValueError(f"The model is not the one that was placed. It lacks {lacks}; new: {new}.")
    for device in {*devices.values()}:
        core.get_property(device.partition(":")[0], "FULL_DEVICE_NAME")  # raises if it is missing
    for op in reversed(ops):
        device = op.get_rt_info()["affinity"] = devices[op.get_friendly_name()]
        sources = {value.get_node().get_friendly_name() for value in op.input_values()}
        devices.update(dict.fromkeys(sources & weights, device))  # in the end, the first user's
    return placed["target"], placed["properties"]


def _read(directory: str | os.PathLike[str]) -> tuple[ov.Model, dict[str, Any]]:
    model = read_placed(Path(directory) / "model.xml")
    return model, noted(model)


# Cores stay: a CPU plugin that is unloaded can leave a thread without its signal stack, and then
# Ctrl-C ends the process.
@cache
def _core(_use: str, *emulated: tuple[str, str, str]) -> ov.Core:
    core = ov.Core()
    for name, plugin, internal in emulated:
        proxy = {"ALIAS": name, "PRIORITY": "0", "INTERNAL_NAME": internal}
        core.register_plugin(
            plugin, internal, {f"PROXY_CONFIGURATION_{k}": v for k, v in proxy.items()}
        )
    return core


def _core_for(plan: Mapping[str, Any]) -> ov.Core:
    return _core("models", *((name, *plugin) for name, plugin in plan["emulated"].items()))


def _compile(model: ov.Model, core: ov.Core) -> ov.CompiledModel:
    return core.compile_model(model, *place_ops(model, core))


def _full_name(core: ov.Core, name: str) -> str:
    with contextlib.suppress(Exception):
        return str(core.get_property(name, "FULL_DEVICE_NAME"))
    return ""


def header_text(compiled: ov.CompiledModel) -> str:
    """Return the XML at the start of HETERO's export, the submodels' wiring; empty without it."""
    stream = _HeaderOnly()
    # The export always ends in an error: the stream refuses the weights after the header, or the
    # device cannot export.
    with contextlib.suppress(Exception):
        compiled.export_model(stream)
    raw = stream.getvalue()
    start, end = raw.find(b"<hetero"), raw.find(b"</hetero>")
    return raw[start : end + 9].decode(errors="replace") if 0 <= start < end else ""


class _HeaderOnly(io.BytesIO):
    def write(self, data: Any) -> int:
        if b"</hetero>" in self.getvalue():
            raise BufferError("the header is whole")
        return super().write(data)


def _requests(directory: str | os.PathLike[str]) -> Iterator[list[np.ndarray]]:
    """Yield the inputs of each stored request, in the model's order."""
    requests: dict[int, dict[int, np.ndarray]] = {}
    for key, array in read_npz(Path(directory) / "requests.npz").items():
        number, _, index = key.lstrip("inout").partition(".")
        given = requests.setdefault(int(number), {})  # empty, if the model has no inputs
        if key.startswith("in"):
            given[int(index)] = array
    for _, given in sorted(requests.items()):
        yield [array for _, array in sorted(given.items())]


def _infer(
    compiled: ov.CompiledModel, plan: Mapping[str, Any], inputs: list[np.ndarray]
) -> tuple[list[np.ndarray], Callable[[], object]]:
    """Infer in a new request; return the outputs, and a function that infers again."""
    request = compiled.create_infer_request()
    if "generation" in plan:
        again = partial(_logits, request, plan["generation"], *inputs)
        return [again()], again
    request.infer(list(inputs))
    outputs = [np.array(request.get_output_tensor(i).data) for i in range(len(compiled.outputs))]
    return outputs, lambda: request.infer(share_outputs=True)


def _step(
    request: ov.InferRequest, generation: Mapping[str, Any], ids: np.ndarray, past: int
) -> np.ndarray:
    """Append tokens to sequences of ``past`` tokens; return the logits of the next one."""
    batch, n = ids.shape
    known = {
        "input_ids": ids,
        "attention_mask": np.ones((batch, past + n)),
        "position_ids": np.tile(np.arange(past, past + n), (batch, 1)),
        "beam_idx": np.arange(batch),
    }
    for index, (name, kind) in enumerate(generation["inputs"]):
        request.set_input_tensor(index, ov.Tensor(known[name].astype(kind)))
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
    given = [prompt, *(tokens[:, i : i + 1] for i in range(tokens.shape[1] - 1))]
    past, made = 0, []
    for ids in given:
        made.append(np.array(_step(request, generation, ids, past), np.float32))
        past += ids.shape[1]
    return np.stack(made, 1)


def _tokens(
    model: ov.Model, plan: Mapping[str, Any], ids: np.ndarray, new_tokens: int
) -> Iterator[np.ndarray]:
    """Yield the likeliest next token of each sequence, ``[batch, 1]``, step by step."""
    if "generation" not in plan:
        raise ValueError(f"{plan['label']} is no language model, so it cannot generate.")
    generation, past = plan["generation"], 0
    limit = generation["context_tokens"]
    if limit is not None and ids.shape[1] + new_tokens > limit:
        raise ValueError(
            f"{ids.shape[1]} tokens and {new_tokens} new ones are longer than the model's context "
            f"of {limit} tokens."
        )
    request = _compile(model, _core_for(plan)).create_infer_request()
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
    inputs = next(iter(_requests(directory)))
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
def _kept_on(core: int | None) -> Iterator[None]:
    """Keep this thread on a core, unless it is ``None``."""
    if core is None:
        yield
        return
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, everywhere)


def _warm_up(run: Callable[[], object]) -> float:
    began, done = perf_counter(), 0
    while not done or perf_counter() - began < _WARM_UP_S:
        run()
        done += 1
    return (perf_counter() - began) / done


def _turn(run: Callable[[], object], timed: int, core: int | None = None) -> list[float]:
    samples = []
    with _kept_on(core):
        for _ in range(_DISCARDED):
            run()
        for _ in range(timed):
            began = perf_counter()
            run()
            samples.append((perf_counter() - began) * 1e6)
    return samples


def main() -> None:
    """Run on the inputs of the first argument; write the outputs to the second."""
    try:
        _run_here()
    except Exception as error:  # its text may be that of a file
        print(f"run.py: {_plain(' '.join(str(error).split()))}", file=sys.stderr)
        sys.exit(2)


def _plain(text: str) -> str:
    """Return text without what a terminal or a CI's log obeys; lines stay lines."""
    shown = "".join(c if c.isprintable() or c == "\n" else " " for c in text)
    return re.sub(r"(?<!\S):(?=:)|#(?=#\w*\[)", r"\g<0> ", shown)


def _run_here() -> None:
    here = Path(__file__).parent
    if sys.argv[1:2] in (["-h"], ["--help"]):
        print(__doc__)
        return
    if sys.argv[1:2] == ["--observe"]:
        _observe_into(*sys.argv[2:])
        return
    is_file = len(sys.argv) > 1 and sys.argv[1].endswith(".npz") and Path(sys.argv[1]).is_file()
    if len(sys.argv) > 1 and not is_file and "generation" in _read(here)[1]:
        for more in text(here, sys.argv[1], *map(int, sys.argv[2:3])):
            print(_plain(more), end="", flush=True)
        print()
        return
    outputs = run(here, read_npz(sys.argv[1] if len(sys.argv) > 1 else here / "inputs.npz"))
    for name, value in outputs.items():
        print(_plain(" ".join(name.split())), value.shape, value.dtype, value.ravel()[:5])
    if len(sys.argv) > 2:
        np.savez(sys.argv[2], **outputs)  # pyright: ignore[reportArgumentType]


def _observe_into(directory: str, target: str, options: str) -> None:
    """Write the observations of a directory into another: observed.json and outputs.npz."""
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
