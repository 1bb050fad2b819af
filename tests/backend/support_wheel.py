"""A wheel with tables of support as winml-cli has them, of a few rows that a test writes itself."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

_KINDS = {bool: "bool", int: "int", str: "str", type(None): "none", tuple: "tuple"}


def coded(value: Any) -> dict[str, Any]:
    """Write a value as those tables do."""
    inner = [coded(part) for part in value] if isinstance(value, tuple) else value
    return {"t": _KINDS[type(value)], "v": inner}


def write_wheel(
    path: Path,
    tables: Mapping[str, Iterable[tuple[Mapping[str, Any], bool, bool]]],
    device: str = "NPU",
    opset: int = 13,
) -> Path:
    """Write for each operator its rows: properties, whether it compiled, whether it ran."""
    for operator, rows in tables.items():
        rows = list(rows)
        columns: dict[str, list[Any]] = {
            name: [json.dumps(coded(properties[name])) for properties, _, _ in rows]
            for name in rows[0][0]
        }
        columns["compile_run_success"] = [[compiled, ran] for _, compiled, ran in rows]
        write_table(path, operator, columns, device, opset)
    return path


def write_table(
    path: Path,
    operator: str,
    columns: Mapping[str, list[Any]],
    device: str = "NPU",
    opset: int = 13,
) -> Path:
    """Add a table as it is to a wheel."""
    provider = "OpenVINOExecutionProvider"
    data = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(dict(columns)), data)
    name = f"{operator}_{provider}_{device}_ai.onnx_opset{opset}.parquet"
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"rules/{provider}_{device}/{name}", data.getvalue())
    return path


def softmax_rows() -> list[tuple[dict[str, Any], bool, bool]]:
    """Softmax as on some device: f32 of rank 1 to 5 runs, of rank 6 not; f16 not at all."""
    return [
        (
            {"T_Softmax": kind, "input_dim": rank, "attr_axis": axis, "input_is_constant": False},
            kind == "FLOAT" and rank < 6,
            True,
        )
        for kind in ("FLOAT", "FLOAT16")
        for rank in range(1, 7)
        for axis in range(-rank, rank)
    ]
