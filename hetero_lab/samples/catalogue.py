"""Sample models: one is bundled, the others are fetched on first use.

``samples.json`` beside the bundled model lists them.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hetero_lab.errors import ArgumentError, SampleError, did_you_mean, names_at_hand, shorten
from hetero_lab.fetch import (
    Member,
    Wheel,
    cache_dir,
    cached_path,
    fetch,
    file_digest,
    keep,
    keep_directory,
)
from hetero_lab.samples import made_models, onnx_wire
from hetero_lab.tables import frame_of

if TYPE_CHECKING:
    import pandas as pd

_GGUF = "gguf"
# What makes a model of the bytes of a fetched file.
_MAKERS: dict[str, Callable[[bytes], bytes]] = {
    "googlenet_graph": made_models.googlenet,
    "efficientnet_lite0": made_models.efficientnet_lite0,
}


class Sample(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sample model, as the manifest describes it.

    ``shapes`` has the static shape of every input, by the name in the model file. ``bundled`` is a
    file in the directory of the data sets; the others have ``wheel`` and ``member`` instead.
    ``made_by`` names the maker that turns the fetched member into a model with the SHA-256
    ``made_sha256``; ``"gguf"`` makes a directory, whose content depends on the release of OpenVINO
    GenAI. ``n_bytes`` is the size of the model file(s). ``labels`` are the classes, or their place
    in a ``file`` of the sample's wheel or of ``labels_wheel``.
    """

    name: str
    task: str
    licence: str
    n_bytes: int
    shapes: dict[str, tuple[int, ...]]
    labels: tuple[str, ...] | dict[str, str] | None
    dataset: str | None
    bundled: str | None = None
    wheel: Wheel | None = None
    member: Member | None = None
    made_by: str | None = None
    made_sha256: str = ""
    labels_wheel: Wheel | None = None


def datasets_dir() -> Path:
    """Return the directory of the bundled models and the manifest of the others."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "datasets"
    return installed if installed.is_dir() else package.parent / "datasets"


def samples() -> pd.DataFrame:
    """Return the sample models, one row each.

    Returns
    -------
    pandas.DataFrame
        Columns: ``name`` (for :func:`hetero_lab.load`), ``task``, ``licence``, ``n_bytes`` of
        the model, ``bundled`` or to be fetched, ``cached`` (fetched already), the ``package``
        that provides it, and the name of its ``dataset`` for :func:`hetero_lab.dataset`, or "".

    Examples
    --------
    >>> import hetero_lab as hl
    >>> found = hl.samples().set_index("name")
    >>> found.loc["digits_inception", "dataset"]
    'digits'
    """
    rows = [
        {
            "name": sample.name,
            "task": sample.task,
            "licence": sample.licence,
            "n_bytes": sample.n_bytes,
            "bundled": sample.wheel is None,
            "cached": _model_path(sample).is_file() and sample.wheel is not None,
            "package": f"{sample.wheel.package}=={sample.wheel.version}" if sample.wheel else "",
            "dataset": sample.dataset or "",
        }
        for sample in _manifest(datasets_dir()).values()
    ]
    return frame_of(rows)


def sample_names() -> tuple[str, ...]:
    return tuple(_manifest(datasets_dir()))


def sample(name: str) -> Sample:
    """Return the manifest's entry of a sample model; ArgumentError if there is none."""
    samples = _manifest(datasets_dir())
    if name not in samples:
        raise ArgumentError(
            f"{shorten(str(name))} is not a sample model.{did_you_mean(str(name), samples)} "
            f"Samples: {names_at_hand(samples, len(samples))}."
        )
    return samples[name]


def sample_path(name: str) -> Path:
    """Return the path of a sample's model file; fetch it first where it has to be.

    Raises ArgumentError for an unknown sample, and SampleError, which says how to fetch it by hand,
    if it cannot be fetched.
    """
    entry = sample(name)
    path = _model_path(entry)
    if entry.wheel is None or entry.member is None:
        if not path.is_file():
            raise SampleError(f"The bundled model {path} is missing. Reinstall hetero_lab.")
        return path
    if entry.made_by is None:
        return fetch(entry.wheel, entry.member)
    if entry.made_by == _GGUF:
        if not path.is_file():
            made_models.check_genai(name)
            source = fetch(entry.wheel, entry.member)
            keep_directory(path.parent, functools.partial(made_models.convert_gguf, source))
        return path
    if file_digest(path) != entry.made_sha256:
        source = fetch(entry.wheel, entry.member)
        content = _MAKERS[entry.made_by](source.read_bytes())
        if hashlib.sha256(content).hexdigest() != entry.made_sha256:
            raise SampleError(
                f"The model {name!r} that was made is not the expected one: its SHA-256 is not "
                f"{entry.made_sha256}. Nothing was kept."
            )
        keep(path, content)
    return path


def sample_labels(name: str) -> tuple[str, ...] | None:
    """Return a sample's class names in the order of its output, or None.

    Fetches the names, or the sample if its files hold them. Those of ``ppocr_rec`` are its
    characters; its file lacks the CTC blank before them and the space after them.
    """
    entry = sample(name)
    if not isinstance(entry.labels, dict):
        return entry.labels
    wheel = entry.labels_wheel or entry.wheel
    assert wheel is not None
    file = next(m for m in wheel.members if m.file_name == entry.labels["file"])
    content = fetch(wheel, file).read_bytes()
    if "metadata" in entry.labels:
        return tuple(onnx_wire.metadata(content)[entry.labels["metadata"]].split("\n"))
    if "key" in entry.labels:
        return tuple(json.loads(content)[entry.labels["key"]])
    lines = content.decode().splitlines()
    return tuple(line.partition(" ")[2] for line in lines)  # after the synset's number


@functools.lru_cache(maxsize=4)
def _manifest(directory: Path) -> dict[str, Sample]:
    path = directory / "samples.json"
    try:
        listed = json.loads(path.read_text("utf-8"))
    except OSError as error:
        message = f"The list of samples {path} is missing. Reinstall hetero_lab."
        raise SampleError(message) from error
    for entry in listed["samples"]:
        for name in {"wheel", "labels_wheel"} & entry.keys():
            entry[name] = listed["wheels"][entry[name]]
        if "wheel" in entry:
            members = {member["path"]: member for member in entry["wheel"]["members"]}
            entry["member"] = members[entry["member"]]
    return {s.name: s for s in msgspec.convert(listed["samples"], list[Sample])}


def _model_path(entry: Sample) -> Path:
    """Return where the model file is or will be."""
    if entry.wheel is None or entry.member is None:
        return datasets_dir() / str(entry.bundled)
    if entry.made_by == _GGUF:
        return cache_dir() / entry.name / entry.member.sha256[:12] / made_models.GGUF_MODEL
    if entry.made_by:
        # A later version may make it in another way: a file of its own for each.
        return cache_dir() / entry.name / f"{entry.made_sha256[:12]}.onnx"
    return cached_path(entry.wheel, entry.member)
