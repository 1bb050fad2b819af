"""Take a placement away: model, affinities and properties in a directory that runs by itself."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from hetero_lab.backend.core import runtime_version, shared_core
from hetero_lab.backend.emulation import emulated_devices, plugin_of
from hetero_lab.errors import CompileError
from hetero_lab.model.read import (
    PreparedModel,
    Source,
    input_name,
    output_names,
    prepare,
    save,
)
from hetero_lab.placement.partition import predict
from hetero_lab.placement.placement import Placement, PlacementLike, compile_call, resolve
from hetero_lab.runtime import run_frozen
from hetero_lab.runtime.compiled import compile_placement, labelled_clone
from hetero_lab.runtime.inputs import bind_inputs, generate_inputs
from hetero_lab.tables import SCHEMA_VERSION, make_directory, scratch_directory, write_json


def freeze(
    model: Source,
    placement: PlacementLike,
    directory: str | os.PathLike[str],
    *,
    core: ov.Core | None = None,
) -> Path:
    """Write a directory that reproduces placement and outputs with openvino and numpy alone.

    It holds ``model.xml`` and ``model.bin`` (the prepared model, weights as they are),
    ``placement.json`` (affinities, properties, names), ``inputs.npz`` (an example) and
    ``run.py``. What was written is read back, compiled and compared before it takes its place.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes.
    placement
        A Placement, an Affinity, ``"HETERO:ACC,CPU"`` or ``"CPU"``.
    directory
        Made if it is not there; files of the same names are replaced.

    Returns
    -------
    pathlib.Path
        The directory.

    Raises
    ------
    OutputPathError
        The directory cannot be made or written.
    CompileError
        The runtime refuses the placement, or what was written gives other outputs.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> acc = hl.emulate("ACC", unsupported={"Softmax"})
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as scratch:
    ...     directory = hl.freeze(model, "HETERO:ACC,CPU", f"{scratch}/deploy")
    ...     sorted(path.name for path in directory.iterdir())
    ['inputs.npz', 'model.bin', 'model.xml', 'placement.json', 'run.py']
    """
    core = core or shared_core()
    prepared = prepare(model)
    resolved = resolve(prepared, placement, core=core)
    target = make_directory(directory)
    inputs = generate_inputs(prepared)
    expected = compile_placement(prepared, resolved, core=core)(inputs)
    with scratch_directory(target, ".hetero_lab-") as draft:
        _write(draft, prepared, resolved, inputs, core)
        _check(draft, inputs, expected)
        for file in sorted(draft.iterdir()):
            os.replace(file, target / file.name)
    return target


def _write(
    draft: Path,
    prepared: PreparedModel,
    placement: Placement,
    inputs: dict[str, np.ndarray],
    core: ov.Core,
) -> None:
    model, _ = labelled_clone(
        prepared, placement.affinity, predict(prepared.graph, placement.affinity)
    )
    compile_on, properties = compile_call(placement, core)
    specs = emulated_devices(core)
    # Saving drops the labels from the model, so they stand in placement.json.
    affinity = {
        node.get_friendly_name(): node.get_rt_info()["affinity"].astype(str)
        for node in model.get_ordered_ops()
    }
    save(model, draft / "model.xml")
    write_json(
        draft / "placement.json",
        {
            "kind": "frozen placement",
            "schema_version": SCHEMA_VERSION,
            "label": placement.label,
            "openvino_version": runtime_version(),
            "model_fingerprint": prepared.fingerprint,
            "target": compile_on,
            "properties": _plain(properties),
            "inputs": [input_name(port) for port in prepared.model.inputs],
            "outputs": output_names(prepared.model),
            "emulated": {d: list(plugin_of(specs[d])) for d in placement.devices if d in specs},
            "affinity": affinity,
        },
    )
    arrays = bind_inputs(prepared, inputs)
    named: dict[str, Any] = dict(zip(inputs, arrays, strict=True))
    np.savez(draft / "inputs.npz", **named)
    shutil.copyfile(run_frozen.__file__, draft / "run.py")


def _check(draft: Path, inputs: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Run what was written and compare it with what was compiled."""
    got = run_frozen.run(draft, inputs)
    for name, value in expected.items():
        if not np.allclose(got[name], value, rtol=1e-3, atol=1e-5, equal_nan=True):
            raise CompileError(
                f"The frozen placement gives other values for output {name!r} than the compiled "
                "one; nothing was written."
            )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return value if isinstance(value, bool | int | float | str) else str(value)
