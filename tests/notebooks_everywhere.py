"""Run the notebooks as on other machines: ``python -m tests.notebooks_everywhere`` in the root.

Each notebook runs to its end under each condition, on this machine:

========== =====================================================================================
here       nothing is changed
busy       another process keeps one core busy
one-core   the notebook has one core
no-bf16    the CPU has neither bf16 nor AMX (:mod:`tests.without_bf16`)
wide       CPU is asked to use 16 threads
offline    no package index can be reached, and nothing was fetched before
jupyterlab run by JupyterLab in a browser, not by nbclient
converted  as here, and nbconvert makes a page of it that shows every figure (needs kaleido)
========== =====================================================================================

It prints a table, with the first line of the error where one failed, and ends with 1 then.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter

from tests import without_bf16

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CONDITIONS = ("here", "busy", "one-core", "no-bf16", "wide", "offline", "jupyterlab", "converted")
_CELL_S = 900  # a cell that takes longer hangs
_PLOTLY = "application/vnd.plotly.v1+json"
_WIDE = (
    "from hetero_lab.devices.core import shared_core\n"
    "shared_core().set_property('CPU', {'INFERENCE_NUM_THREADS': 16})"
)


def run(notebook: Path, condition: str) -> str:
    """Run a notebook, in a directory of its own; return its error, empty if it ran to its end."""
    with tempfile.TemporaryDirectory() as directory:
        error = _in_jupyterlab if condition == "jupyterlab" else _in_nbclient
        return error(notebook, condition, Path(directory))


def _in_nbclient(notebook: Path, condition: str, directory: Path) -> str:
    read = nbformat.read(notebook, as_version=4)
    if condition == "wide":
        read.cells.insert(0, nbformat.v4.new_code_cell(_WIDE))
    client = NotebookClient(
        read,
        timeout=_CELL_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(_place(directory))}},
    )
    with _circumstances(condition, directory) as env:
        try:
            client.execute(env=env)
        except CellExecutionError as error:
            return f"{error.ename}: {error.evalue}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return _missing_figures(read) if condition == "converted" else ""


def _missing_figures(executed: nbformat.NotebookNode) -> str:
    """Say which figures a page that runs no scripts does not show."""
    outputs = [o for cell in executed.cells for o in cell.get("outputs", ())]
    figures = [o.data for o in outputs if _PLOTLY in o.get("data", {})]
    page, _ = HTMLExporter().from_notebook_node(executed)
    shown = sum(page.count(f"data:image/png;base64,{o['image/png'][:99]}")
                for o in figures if "image/png" in o)  # fmt: skip
    return "" if shown >= len(figures) else f"the page shows {shown} of {len(figures)} figures"


def _in_jupyterlab(notebook: Path, condition: str, directory: Path) -> str:
    from tests.widgets.jupyter_in_browser import opened, running_browser, running_lab

    (directory / "home").mkdir()
    place = _place(directory)
    shutil.copy(notebook, place)
    # From the page's own model of the notebook: what is not in view is not drawn.
    errors = (
        "() => window.jupyterapp.shell.currentWidget.content.model.sharedModel.toJSON().cells"
        ".flatMap(c => c.outputs ?? []).filter(o => o.output_type === 'error')"
        ".map(o => `${o.ename}: ${o.evalue}`)"
    )
    with (
        running_lab(place, directory / "home") as lab,
        running_browser() as browser,
        opened(browser, lab, notebook.name) as page,
    ):
        page.page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")
        found = [*page.page.evaluate(errors), *page.errors]
    return found[0] if found else ""


def _place(directory: Path) -> Path:
    place = directory / "notebooks"
    place.mkdir()
    return place


@contextlib.contextmanager
def _circumstances(condition: str, directory: Path) -> Iterator[dict[str, str]]:
    """Make the machine what the condition says, and yield the environment of the kernel."""
    env = dict(os.environ)
    cores = sorted(os.sched_getaffinity(0))
    spinning = None
    if condition == "busy":
        spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        os.sched_setaffinity(spinning.pid, cores[-1:])
    elif condition == "no-bf16":
        env = without_bf16.environment(directory)
    elif condition == "offline":
        env |= {"PIP_NO_INDEX": "1", "HETERO_LAB_CACHE": str(directory / "cache")}
        env.pop("PIP_FIND_LINKS", None)
    elif condition == "one-core":
        os.sched_setaffinity(0, cores[:1])  # which the kernel inherits
    try:
        yield env
    finally:
        os.sched_setaffinity(0, cores)
        if spinning:
            spinning.kill()
            spinning.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.notebooks_everywhere")
    parser.add_argument("names", nargs="*", metavar="NAME", help="01, 02, …; all without")
    parser.add_argument("--conditions", nargs="+", choices=CONDITIONS, default=["here"])
    parser.add_argument("--times", type=int, default=1, help="how often each of them runs")
    given = parser.parse_args(arguments)
    chosen = [path for path in NOTEBOOKS if path.name.startswith(tuple(given.names or [""]))]
    if not chosen:
        parser.error(f"no notebook begins with {', '.join(given.names)}")
    failed = done = 0
    print(f"{'notebook':30}{'condition':12}{'seconds':>9}  ended", flush=True)
    for path in chosen:
        for condition in given.conditions:
            for _ in range(given.times):
                began = time.monotonic()
                error = run(path, condition)
                took_s, said = time.monotonic() - began, error.strip().partition("\n")[0][:200]
                done += 1
                failed += bool(error)
                print(f"{path.stem:30}{condition:12}{took_s:9.0f}  {said or 'well'}", flush=True)
    print(f"{done - failed} of {done} ran to their end.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
