"""Write the JSON schema of what each command prints with ``--json``, docs/outputs/schemas/.

``python -m docs.json_schemas [COMMAND…]`` runs each command on a small model and describes the
tables that it gives: a column's name says its type and its unit. Run it when a table changes.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hetero_lab.cli.commands import COMMANDS, EXIT_CODES
from hetero_lab.cli.main import main
from hetero_lab.tables import TEXT_COLUMNS

SCHEMAS = Path(__file__).parent / "outputs" / "schemas"
_MODEL = "digits_inception"
_SPLIT = f"{_MODEL} -d HETERO:ACC,CPU --emulate ACC:unsupported=Concat"
_PAIR = f"{_MODEL} -d ACC,CPU --emulate ACC:unsupported=Concat"
# In this order: later ones read what earlier ones wrote.
RUNS = {
    "devices": "",
    "doctor": "",
    "samples": "",
    "support": _MODEL,
    "lint": _SPLIT,
    "simplify": _SPLIT,
    "profile": f"{_SPLIT} -b 2",
    "sweep": f"{_PAIR} --turns 2",
    "explain": f"{_MODEL} CPU HETERO:ACC,CPU --emulate ACC:unsupported=Concat",
    "freeze": f"{_MODEL} deploy -d CPU",
    "export": f"{_MODEL} -d CPU --for benchmark_app",
    "apply": f"{_MODEL} deploy",
    "verify": "deploy",
    "noise": "-d CPU -b 3",
    "find-wrong": f"{_MODEL} -d CPU -b 5",
    "investigate": f"{_MODEL} -d CPU -b 30",
    "bisect": "symptom.py --between 2026.3.0 2026.4.1",
    "classify": f"{_MODEL} digit.png -d CPU",
    "plan": f"{_PAIR} -b 5",
    "optimize": f"{_PAIR} -b 5",
    "advise": f"{_PAIR} -b 15",
    "machine": "machine.toml --emulate ACC -b 40",
    "demo": "",
}
_UNITS = {
    "_us": "µs",
    "_ms": "ms",
    "_per_s": "per second",
    "_s": "s",
    "bytes": "bytes",
    "share": "share of 1",
}
_NESTED = {"ops": ["array"], "remedy": ["object"]}  # names of ops; op → device
_PLAIN = {"type": "string"}


def run(command: str) -> tuple[int, str]:
    """Run a command of ``RUNS`` in this process and directory; return its code and output."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = main([command, *RUNS[command].split(), "--json"])
    return code, said.getvalue()


_MACHINE = f"""\
devices = ["ACC", "CPU"]
[models.one]
model = "{_MODEL}"
rate_per_s = 50
deadline_ms = 500
[models.other]
model = "{_MODEL}"
"""


def prepare() -> None:
    """Write what the commands read: a picture, a machine, and a script that shows no symptom."""
    from PIL import Image

    Path("machine.toml").write_text(_MACHINE, "utf-8")
    Image.new("L", (8, 8), 200).save("digit.png")
    Path("symptom.py").write_text("raise SystemExit(0)\n", "utf-8")


def schema_of(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a command from one of its answers."""
    tables = {
        name: {"type": "array", "items": _row(dict.fromkeys(key for row in rows for key in row))}
        for name, rows in answer.get("tables", {}).items()
    }
    more = {"tables": _object(tables)} if tables else {}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": answer["kind"],
        **_object(
            {
                "kind": {"const": answer["kind"]},
                "schema_version": {"const": answer["schema_version"]},
                "hetero_lab_version": _PLAIN,
                "exit_code": {"enum": [*EXIT_CODES]},
                "interrupted": {"type": "boolean"},
                "verdict": _PLAIN,
                "notes": {"type": "array", "items": _PLAIN},
                "next": {"type": "array", "items": _PLAIN, "description": "commands to go on with"},
                "written": {"type": "object", "additionalProperties": _PLAIN},
                "error": _object({"type": _PLAIN, "message": _PLAIN}),
                **more,
            },
            ["kind", "schema_version", "hetero_lab_version", "exit_code", "interrupted"],
        ),
    }


def _object(properties: dict[str, Any], required: Iterable[str] | None = None) -> dict[str, Any]:
    asked = properties if required is None else required
    return {"type": "object", "properties": properties, "required": [*asked]}


def _row(columns: Iterable[str]) -> dict[str, Any]:
    """Return the schema of a row; a column that is missing or empty is null."""
    return _object({name: _column(name) for name in columns}, ())


def _column(name: str) -> dict[str, Any]:
    if name in TEXT_COLUMNS:
        return {"type": ["string", "null", *_NESTED.get(name, ())]}
    if name.startswith(("is_", "has_")):
        return {"type": ["boolean", "null"]}
    if name.startswith("n_"):
        return {"type": ["integer", "null"]}
    unit = next((unit for suffix, unit in _UNITS.items() if name.endswith(suffix)), "")
    return {"type": ["number", "null"], "description": unit} if unit else {}


def write(commands: Iterable[str]) -> None:
    """Run commands and write their schemas."""
    SCHEMAS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        prepare()
        for command in commands:
            code, said = run(command)
            answer = json.loads(said)
            if "error" in answer:
                raise SystemExit(f"{command}: {code}, {answer['error']}")
            text = json.dumps(schema_of(answer), indent=1, ensure_ascii=False) + "\n"
            (SCHEMAS / f"{command}.json").write_text(text, "utf-8")


if __name__ == "__main__":
    os.environ.setdefault("COLUMNS", "100")
    write(sys.argv[1:] or [*COMMANDS])
