"""Pages of the site that are made of something else: the course, the gallery, the reference."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat

import hetero_lab as hl
from docs.course import NOTEBOOKS, figure_html, with_outputs
from docs.explorer import explorer_html
from docs.record import GALLERY, MODEL, RECORDINGS, UNSUPPORTED

HERE = Path(__file__).parent
_RECORDED = (
    "These are recordings of real runs, of {where}. An emulated device is the CPU under a second "
    "name: structure, bytes and numbers are real, its speed is not that of an accelerator."
)
_FUNCTIONS = {
    "Devices and models": ("devices", "emulate", "support", "samples", "load",
                           "blocks", "dataset"),
    "Placements": ("Affinity", "Placement", "Priorities", "partition", "lint", "explain"),
    "Measure": ("compile", "profile", "sweep", "priority_orders", "block_cuts", "hotspots",
                "compare", "measure_noise"),
    "Find the best": ("calibrate", "guess_costs", "plan", "fit_blocks", "optimize",
                      "ParallelExecutor"),
    "Accuracy": ("evaluate", "recover_accuracy", "find_wrong", "find_refused", "quantize",
                 "compress_weights", "classify"),
    "Deploy": ("freeze", "advise", "verify"),
    "Widgets": ("AffinityTweaker", "SweepExplorer"),
    "Stored results": ("read_profile", "read_sweep", "read_wrong"),
}  # fmt: skip

SPACES = {
    "llm": "Language models",
    "interop": "Other tools",
    "types": "Types of results",
    "views": "Views",
}


def write_course() -> None:
    """Write the notebooks with the outputs that were recorded of them."""
    target = _empty(HERE / "tutorial")
    names = []
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        nbformat.write(with_outputs(path), target / path.name)
        names.append(path.stem)
    _write(
        target / "index.md",
        "# Tutorial",
        "The course: each notebook asks a question, measures, shows a picture and ends with an "
        "exercise. The outputs here were recorded; figures can be zoomed and hovered over. To run "
        "it yourself: `jupyter lab notebooks/01_quickstart.ipynb`.",
        _toctree(names),
    )


def write_gallery() -> None:
    """Write the figures of the recordings, live in the page."""
    target = _empty(HERE / "gallery")
    hl.emulate("ACC", unsupported=UNSUPPORTED)  # the placements of the recordings name it
    profile = hl.read_profile(GALLERY / "profile")
    sweep = hl.read_sweep(GALLERY / "sweep")
    costs = hl.CostModel.from_json(GALLERY / "costs.json")
    wrong = hl.read_wrong(RECORDINGS / "gpu_plugin_digits_inception")
    difference = hl.explain(
        MODEL, *(hl.Affinity.from_json(GALLERY / f"{name}.json") for name in ("automatic", "fixed"))
    )
    about = profile.environment
    here = f"the CPU of one machine and a device emulated on it, OpenVINO {about.openvino_version}"
    rig = "OpenVINO's GPU plugin on a CPU"
    chapters = {
        "profile": ("One placement", "hl.profile(model, placement)", profile, here),
        "sweep": ("Many placements", "hl.sweep(model, placements, data=data)",
                  sweep, here),
        "costs": ("What ops and boundaries cost", "hl.calibrate(model, devices)", costs, here),
        "difference": ("Two placements compared", "hl.explain(model, before, after)", difference,
                       here),
        "wrong": ("Wrong numbers", "hl.find_wrong(model, device)", wrong, rig),
    }  # fmt: skip
    for name, (title, call, result, where) in chapters.items():
        _write(target / f"{name}.md", f"# {title}", *_chapter(call, result, where))
    _write(
        target / "explorer.md",
        "# Look through a sweep",
        _recorded(here),
        "`hl.SweepExplorer(sweep)` is a widget; this one needs no notebook. A click on a point, or "
        "the list, chooses the placement A; compare it with a placement B.",
        _raw(explorer_html(sweep)),
    )
    _write(
        target / "index.md",
        "# Gallery",
        "Every figure of the lab, live: hover, zoom, click a legend. Nothing runs behind it.",
        _toctree(["explorer", *chapters]),
    )


def write_reference() -> None:
    """Write a page a group of public names, from their docstrings."""
    target = _empty(HERE / "reference")
    stems = []
    for title, names in groups().items():
        stem = title.lower().replace(" ", "_")
        _write(target / f"{stem}.md", f"# {title}", *(_documented(hl, n) for n in names))
        stems.append(stem)
    for stem, title in SPACES.items():
        space = getattr(hl, stem)
        about = inspect.getdoc(space)
        entries = (_documented(space, name) for name in space.__all__)
        _write(target / f"{stem}.md", f"# {title}", f"`hl.{stem}`: {about}", *entries)
    _write(
        target / "index.md",
        "# Reference",
        "Every public name: `import hetero_lab as hl`. Units are the suffixes of names: "
        "`latency_us`, `n_bytes`.",
        _toctree([*stems, *SPACES, "command_line"]),
    )
    _write(target / "command_line.md", "# Command line", *_commands())


def groups() -> dict[str, list[str]]:
    """Return the public names by page of the reference."""
    grouped = {name for names in _FUNCTIONS.values() for name in names}
    results = [name for name in hl.__all__ if name not in grouped and name not in SPACES]
    by_page = {t: [n for n in names if n in hl.__all__] for t, names in _FUNCTIONS.items()}
    return {**by_page, "Other types and errors": sorted(results)}


def _chapter(call: str, result: Any, where: str) -> Iterator[str]:
    yield _recorded(where)
    text = repr(result).replace("```", "'''")
    yield f"`{call}` begins with the answer:\n\n```text\n{text}\n```"
    for name, figure in hl.views.gallery(result).items():
        yield f"## {name}\n\n{_raw(figure_html(figure.to_json()))}"


def _recorded(where: str) -> str:
    return f'<p class="recording">{_RECORDED.format(where=where)}</p>'


def _commands() -> Iterator[str]:
    from hetero_lab.cli.main import COMMANDS, parser

    yield f"```text\n{parser().format_help().strip()}\n```"
    for name, command in COMMANDS.items():
        yield f"## {name}\n\n```text\n{command.parser().format_help().strip()}\n```"


def _documented(module: Any, name: str) -> str:
    value = getattr(module, name)
    if isinstance(value, type):
        kind, options = "autoclass", "\n   :members:\n   :class-doc-from: class"
    else:
        kind, options = "autofunction", ""
    directive = f".. {kind}:: {module.__name__}.{name}{options}"
    return f"## {name}\n\n```{{eval-rst}}\n{directive}\n```"


def _raw(html: str) -> str:
    return f"```{{raw}} html\n{html}\n```"


def _toctree(names: Any) -> str:
    return "```{toctree}\n:maxdepth: 1\n\n" + "\n".join(names) + "\n```"


def _write(path: Path, *blocks: str) -> None:
    path.write_text("\n\n".join(blocks) + "\n", "utf-8")


def _empty(directory: Path) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    return directory
