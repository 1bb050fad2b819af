"""Pages of the site that are made of something else: the course, the gallery, the reference."""

from __future__ import annotations

import html
import inspect
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import nbformat

import hetero_lab as hl
from docs.course import NOTEBOOKS, figure_html, outputs_of, with_outputs
from docs.explorer import explorer_html
from docs.record import GALLERY, MODEL, RECORDINGS, UNSUPPORTED
from hetero_lab.cli.commands import COMMANDS, parser

HERE = Path(__file__).parent
STATIC = HERE / "_static"
_RECORDED = (
    "These are recordings of real runs, of {where}. An emulated device is the CPU under a second "
    "name: structure, bytes and numbers are real, its speed is not that of an accelerator."
)
_FUNCTIONS = {
    "Devices and models": ("devices", "emulate", "support", "samples", "load",
                           "blocks", "dataset"),
    "Placements": ("Affinity", "Placement", "Priorities", "partition", "distribution", "lint",
                   "simplify", "explain"),
    "Measure": ("compile", "profile", "sweep", "priority_orders", "block_cuts", "hotspots",
                "compare", "measure_noise"),
    "Find the best": ("advise", "optimize", "calibrate", "plan", "fit_blocks", "ParallelExecutor"),
    "Accuracy": ("evaluate", "recover_accuracy", "find_wrong", "find_refused", "investigate",
                 "bisect",
                 "quantize", "compress_weights", "classify"),
    "Deploy": ("freeze", "verify"),
    "Widgets": ("AffinityTweaker", "SweepExplorer"),
    "Stored results": ("read_profile", "read_sweep", "read_wrong"),
}  # fmt: skip

SPACES = {
    "llm": "Language models",
    "interop": "Other tools",
    "types": "Types of results",
    "views": "Views",
}

_COMMAND_LINE, _REST = "Command line", "Other types and errors"
# The pages of the reference, by task, each with a sentence.
TASKS = {
    "See": {
        "Devices and models": "What runs here, and what a model is made of.",
        "Views": "Results as figures.",
    },
    "Change": {
        "Placements": "Say where each op goes; see what HETERO makes of it, and what is awkward.",
        "Widgets": "Change a placement, or look through a sweep, with the mouse.",
    },
    "Measure": {
        "Measure": "Latency, counters and outputs of one placement; many placements in turns.",
        "Accuracy": "Right answers, wrong numbers, int8.",
        "Language models": "Placements and phases of models that generate.",
        "Stored results": "Read again what was exported.",
    },
    "Get advice": {"Find the best": "What to deploy, from a verdict down to the costs of each op."},
    "Deploy": {"Deploy": "Freeze a placement, and hold it to its contract."},
    "Look up": {
        _COMMAND_LINE: "The same from a shell.",
        "Other tools": "benchmark_app, dumps of HETERO, NPUW.",
        "Types of results": "What calls return.",
        _REST: "What else has a name.",
    },
}
# What people type into the search → the heading that answers it, by page.
SEARCHED = {
    "howto/troubleshooting": {
        "Dynamic shapes": "dynamic shapes, dynamic inputs, static shape",
        "Wrong outputs": "wrong outputs, wrong results, outputs differ",
        "Slower than CPU alone": "slower than CPU, slower than the CPU, slow split",
        "GPU not listed": "GPU not listed, no GPU found, GPU missing, GPU not found",
        "NPU not listed": "NPU not listed, NPU not found",
        "My model crashes": "my model crashes, crash, crashes, segmentation fault, hangs",
    },
    "faq": {
        "Which op runs where?": "which op runs where, where does an op run, op runs on",
        "Why so many subgraphs?": "why so many subgraphs, many subgraphs",
        "Is int8 worth it?": "is int8 worth it, int8, quantize, quantise",
        "How do I compare two versions?": "compare two versions, compare versions, "
        "compare two placements, compare two models",
        "I have no GPU. Is this of any use?": "no GPU, without a GPU",
    },
    "howto/csv": {"Export CSV": "export CSV, CSV export, pandas, Parquet, Excel, MLflow"},
    "language_models": {"Language models": "language models, LLM"},
    "blocks": {"What fits where": "memory, memory limit, out of memory"},
    "deployment": {"Deploy, and keep it alive": "deploy, deployment, production"},
    "howto/intel_devices": {"NPU": "NPU, use an NPU", "GPU": "Intel GPU"},
    "howto/opencl_gpus": {"NVIDIA and other OpenCL GPUs": "NVIDIA, OpenCL, CUDA"},
    "install": {"Install": "install, pip, conda, Windows, offline"},
}


def mark_searched(_: object, page: str, source: list[str]) -> None:
    """Make the headings that answer a search main entries of the index: they are found first."""
    for heading, phrases in SEARCHED.get(page, {}).items():
        line = re.compile(f"^(#+ {re.escape(heading)})$", re.MULTILINE)
        entries = ", ".join(f"! {phrase}" for phrase in phrases.split(", "))
        marked, n = line.subn(rf"\1\n\n```{{index}} {entries}\n```", source[0])
        if n != 1:
            raise ValueError(f"{page} has {n} headings {heading!r}, which SEARCHED names")
        source[0] = marked


def write_course() -> None:
    """Write the notebooks with the outputs that were recorded of them."""
    target = _empty(HERE / "tutorial")
    asked = {}
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if not outputs_of(path).exists():  # a reader's own notebook
            continue
        notebook = with_outputs(path)
        nbformat.write(notebook, target / path.name)
        prose = (cell.source for cell in notebook.cells if cell.cell_type == "markdown")
        asked[path.stem] = _title_and_question("\n".join(prose))
    _write(
        target / "index.md",
        "# Tutorial",
        "The course: each notebook asks a question, measures, shows a picture and ends with an "
        "exercise. The outputs here were recorded; figures can be zoomed and hovered over. To run "
        "it yourself: `jupyter lab notebooks/01_quickstart.ipynb`.",
        _cards("tutorial", asked),
        _toctree(asked),
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
    shown = {
        "explorer": (
            "Look through a sweep",
            "Choose two placements; see what sets them apart.",
        ),
        "profile": (chapters["profile"][0], "Which op runs where, how long, and what crosses."),
        "sweep": (chapters["sweep"][0], "Which is faster, and which cannot be told apart."),
        "costs": (chapters["costs"][0], "How well a cost model predicts what was measured."),
        "difference": (chapters["difference"][0], "Where the time between the two goes."),
        "wrong": (chapters["wrong"][0], "Where along the model the error jumps."),
    }
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
        _cards("gallery", shown),
        _toctree(shown),
    )


def write_reference() -> None:
    """Write a page a group of public names, from their docstrings."""
    target = _empty(HERE / "reference")
    stems, listed = {}, {}
    for title, names in groups().items():
        stems[title], listed[title] = title.lower().replace(" ", "_"), names
        _write(target / f"{stems[title]}.md", f"# {title}", *(_documented(hl, n) for n in names))
    for stem, title in SPACES.items():
        space = getattr(hl, stem)
        stems[title], listed[title] = stem, space.__all__
        about = inspect.getdoc(space)
        entries = (_documented(space, name) for name in space.__all__)
        _write(target / f"{stem}.md", f"# {title}", f"`hl.{stem}`: {about}", *entries)
    stems[_COMMAND_LINE], listed[_COMMAND_LINE] = "command_line", list(COMMANDS)
    _write(target / "command_line.md", "# Command line", *_commands())
    tasks = (
        f"## {task}\n\n" + "\n\n".join(
            f"**[{title}]({stems[title]}.md)**: {sentence}\n{_linked(stems[title], listed[title])}"
            for title, sentence in pages.items()
        )
        for task, pages in TASKS.items()
    )  # fmt: skip
    _write(
        target / "index.md",
        "# Reference",
        "Every public name: `import hetero_lab as hl`. Units are the suffixes of names: "
        "`latency_us`, `n_bytes`.",
        *tasks,
        _toctree(stems[title] for pages in TASKS.values() for title in pages),
    )


def groups() -> dict[str, list[str]]:
    """Return the public names by page of the reference."""
    grouped = {name for names in _FUNCTIONS.values() for name in names}
    results = [name for name in hl.__all__ if name not in grouped and name not in SPACES]
    by_page = {t: [n for n in names if n in hl.__all__] for t, names in _FUNCTIONS.items()}
    return {**by_page, _REST: sorted(results)}


def _chapter(call: str, result: Any, where: str) -> Iterator[str]:
    yield _recorded(where)
    text = repr(result).replace("```", "'''")
    yield f"`{call}` begins with the answer:\n\n```text\n{text}\n```"
    for name, figure in hl.views.gallery(result).items():
        yield f"## {name}\n\n{_raw(figure_html(figure.to_json()))}"


def _recorded(where: str) -> str:
    return f'<p class="recording">{_RECORDED.format(where=where)}</p>'


def _title_and_question(text: str) -> tuple[str, str]:
    """Return the title of a notebook and the first question of its introduction."""
    title, _, introduction = text.partition("\n")
    question = re.split(r"(?<=[.!:])\s+", introduction.partition("?")[0].strip())[-1].strip("*")
    return title.removeprefix("# "), f"{question[:1].upper()}{question[1:]}?"


def _cards(section: str, pages: Mapping[str, tuple[str, str]]) -> str:
    """Return links to pages, each with its picture, title and sentence."""
    cards = []
    for name, (title, sentence) in pages.items():
        picture = f"thumbnails/{section}_{name}.png"
        shown = f'<img src="../_static/{picture}" alt="">' * (STATIC / picture).exists()
        said = f"<strong>{html.escape(title)}</strong> {html.escape(sentence)}"
        cards.append(f'<a href="{name}.html">{shown}<span>{said}</span></a>')
    return _raw('<div class="cards">' + "\n".join(cards) + "</div>")


def _linked(page: str, names: Iterable[str]) -> str:
    return ", ".join(f"[`{name}`]({page}.md#{name.lower()})" for name in names)


def _commands() -> Iterator[str]:
    yield f"```text\n{parser().format_help().strip()}\n```"
    for name, command in COMMANDS.items():
        yield f"## {name}\n\n```text\n{command.parser().format_help().strip()}\n```"
        yield f"With `--json`: {{download}}`its schema </outputs/schemas/{name}.json>`."


def _documented(module: Any, name: str) -> str:
    value = getattr(module, name)
    if isinstance(value, type):
        kind, options = "autoclass", "\n   :members:\n   :class-doc-from: class"
    else:
        kind, options = "autofunction", ""
    directive = f".. {kind}:: {module.__name__}.{name}{options}"
    return f"## {name}\n\n```{{eval-rst}}\n{directive}\n```"


def _raw(markup: str) -> str:
    return f"```{{raw}} html\n{markup}\n```"


def _toctree(names: Iterable[str]) -> str:
    return "```{toctree}\n:hidden:\n\n" + "\n".join(names) + "\n```"


def _write(path: Path, *blocks: str) -> None:
    path.write_text("\n\n".join(blocks) + "\n", "utf-8")


def _empty(directory: Path) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    return directory
