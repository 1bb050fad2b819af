"""Read back what find_wrong found and stored."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np

from hetero_lab.backend.core import shared_core
from hetero_lab.errors import HeteroLabError, StoredFileError, shorten
from hetero_lab.experiments.environment import environment_from_json
from hetero_lab.experiments.search.wrong import Kind, OpError, Wrong, WrongSet
from hetero_lab.experiments.search.wrong_export import FILE_NAME, GIVEN, MENDED
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.placement import Placement
from hetero_lab.tables import read_json


def read_wrong(directory: str | os.PathLike[str]) -> Wrong:
    """Read what :meth:`Wrong.export` wrote; none of its devices is needed.

    Raises
    ------
    StoredFileError
        The directory holds no such result, or a broken one.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> import tempfile
    >>> acc = hl.emulate("ACC")
    >>> wrong = hl.find_wrong("digits_inception", "HETERO:ACC,CPU", progress=False)
    >>> with tempfile.TemporaryDirectory() as scratch:
    ...     wrong.export(scratch)
    ...     hl.read_wrong(scratch).verdict == wrong.verdict
    True
    """
    target = Path(directory)
    data = read_json(target / FILE_NAME, kind="wrong")
    given, mended = (Affinity.from_json(target / name) for name in (GIVEN, MENDED))
    try:
        result = Wrong(
            kind=_kind(data["found"]),
            verdict=_text(data["verdict"]),
            sets=tuple(
                _read_set(target / f"fault_{number}", stored)
                for number, stored in enumerate(data["sets"], start=1)
            ),
            op_errors=tuple(_op_error(stored) for stored in data["op_errors"]),
            given=_placement(given, data["given"]),
            placement=_placement(mended, data["mended"]),
            proven=_flag(data["proven"]),
            before=float(data["before"]),
            after=float(data["after"]),
            precisions=_texts(data["precisions"]),
            device_properties=_properties(data["device_properties"]),
            plugins={
                device: (_text(library), _text(name))
                for device, (library, name) in data["plugins"].items()
            },
            trusted=_text(data["trusted"]),
            complete=_flag(data["complete"]),
            interrupted=_flag(data["interrupted"]),
            notes=tuple(map(_text, data["notes"])),
            n_compiles=int(data["n_compiles"]),
            elapsed_s=float(data["elapsed_s"]),
            environment=environment_from_json(data["environment"]),
        )
        # What cannot be shown is not whole either.
        _ = result.errors, result.fix, str(result), result._repr_html_()
        return result
    except Exception as error:
        if isinstance(error, HeteroLabError):
            raise
        raise StoredFileError(
            f"{shorten(os.fspath(target))} does not hold a whole result of find_wrong: "
            f"{type(error).__name__}: {error}"
        ) from error


def _read_set(place: Path, stored: Mapping[str, Any]) -> WrongSet:
    model = shared_core().read_model(place / "model.xml")
    with np.load(place / "inputs.npz") as arrays:
        inputs = tuple(arrays[f"in{index}"] for index in range(len(model.inputs)))
    return WrongSet(
        device=_text(stored["device"]),
        ops=tuple(map(_text, stored["ops"])),
        error=float(stored["error"]),
        damage=float(stored["damage"]),
        minimal=_flag(stored["minimal"]),
        model=model,
        inputs=inputs,
        makers=tuple(map(_text, stored["makers"])),
        # Results that were stored by earlier versions have neither.
        untried=tuple(map(_text, stored.get("untried", ()))),
        refusal=_text(stored.get("refusal", "")),
    )


def _op_error(stored: Mapping[str, Any]) -> OpError:
    return OpError(
        op=_text(stored["op"]),
        op_type=_text(stored["op_type"]),
        device=_text(stored["device"]),
        isolated=_measured(stored["isolated"]),
        accumulated=_measured(stored["accumulated"]),
        rounding=_measured(stored["rounding"]),
        jumps=_flag(stored.get("jumps", False)),  # earlier versions did not say
    )


def _measured(value: Any) -> float | None:
    return None if value is None else float(value)


def _placement(affinity: Affinity, stored: Mapping[str, Any]) -> Placement:
    properties = _properties(stored["device_properties"])
    return Placement(affinity, _text(stored["label"]), properties, _flag(stored["direct"]))


def _kind(value: Any) -> Kind:
    if value not in get_args(Kind):
        raise ValueError(f"{shorten(repr(value))} is none of {', '.join(get_args(Kind))}")
    return value


def _checked(kind: type, what: str) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError(f"{shorten(repr(value))} is no {what}")
        return value

    return check


_text, _flag, _object = (
    _checked(str, "text"),
    _checked(bool, "truth value"),
    _checked(dict, "object"),
)


def _texts(value: Any) -> dict[str, str]:
    return {name: _text(text) for name, text in _object(value).items()}


def _properties(value: Any) -> dict[str, dict[str, Any]]:
    return {device: dict(_object(own)) for device, own in _object(value).items()}
