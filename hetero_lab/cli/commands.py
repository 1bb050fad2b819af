"""What the magics and the command line do with their options: call the library."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import hetero_lab as hl
from hetero_lab.cli import options
from hetero_lab.errors import (
    ArgumentError,
    HeteroLabWarning,
    PropertyError,
    names_at_hand,
    shorten,
)
from hetero_lab.lint.causes import summary_lines
from hetero_lab.tables import check_writable

if TYPE_CHECKING:
    from hetero_lab.experiments.profile.result import Profile
    from hetero_lab.model.read import PreparedModel, Source
    from hetero_lab.placement.affinity import Affinity
    from hetero_lab.placement.placement import Placement

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _scenario(given: Namespace) -> hl.Scenario | None:
    """Return what ``--prompt-tokens`` and ``--new-tokens`` say, ``None`` without them."""
    asked = (given.prompt_tokens, given.new_tokens)
    if asked == (None, None):
        return None
    if None in asked:
        raise ArgumentError("A language model needs both --prompt-tokens and --new-tokens.")
    return hl.Scenario(*asked)


def run_profile(
    given: Namespace,
    model: Source,
    affinity: Affinity | Placement | None = None,
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
) -> Profile:
    """Profile as the options of :func:`hetero_lab.cli.options.add_profile_options` say.

    Parameters
    ----------
    given
        The parsed options.
    model
        What MODEL stands for.
    affinity
        What ``--affinity`` stands for; ``None`` reads it as a file, if it is given.
    defaults
        Properties of devices that ``--property`` may overrule.

    Returns
    -------
    Profile
        After it was written to ``--csv`` and ``--export``.
    """
    from hetero_lab.model.read import prepare

    check_targets(files=[given.csv, given.html], directories=[given.export])
    scenario = _scenario(given)
    prepared = prepare(model, options.shapes(given.shape))
    result = until_interrupted(
        hl.profile,
        prepared,
        placement_of(given, prepared, affinity, defaults),
        executor=given.executor,
        requests=given.requests,
        iterations=given.iterations,
        warmup=given.warmup,
        budget_s=given.budget,
        inputs=given.input,
        scenario=scenario,
        counters=not given.no_counters,
        reference=not given.no_reference,
        isolate=given.isolate,
        progress=not given.quiet,
    )
    if given.csv is not None:
        result.to_csv(given.csv)
    if given.export is not None:
        result.export(given.export)
    write_page(given.html, result)
    return result


def after_profile(given: Namespace, prepared: PreparedModel, profile: Profile) -> list[str]:
    """Return what is awkward about the placement, by cause, and the next command."""
    lines = []
    devices = profile.affinity.devices
    if profile.partition.n_subgraphs > 1:
        first, *rest = summary_lines(hl.lint(prepared, profile.affinity), most=1)
        lines.append(f"Findings:   {first}{' ' + rest[0] if rest else ''}")
    if profile.generation is not None:  # neither takes a language model
        return lines
    wrong = any(a.verdict in ("different", "not a number") for a in profile.agreement)
    if wrong and given.device is not None:
        lines.append(f"Next:       {again(given, 'find-wrong', '-d', given.device)}")
    elif profile.partition.n_subgraphs > 1:
        lines.append(f"Next:       {again(given, 'optimize', '-d', ','.join(devices))}")
    return lines


def write_page(path: str | None, result: Any, notes: Sequence[str] = ()) -> None:
    """Write the page of ``--html``, if one is asked for."""
    if path is not None:
        hl.views.page(result, path, notes=notes)


def command_line(*words: str) -> str:
    """Return a command that can be pasted into a shell."""
    return shlex.join(words)


def again(given: Namespace, command: str, *more: str) -> str:
    """Return another command on the model, the shapes and the emulated devices of this one."""
    same = [("--shape", given.shape), ("--emulate", given.emulate)]
    repeated = [word for option, texts in same for text in texts for word in (option, text)]
    models = [given.model] if isinstance(given.model, str) else given.model
    return command_line("hetero-lab", command, *models, *more, *repeated)


def until_interrupted(call: Callable[_P, _T], *args: _P.args, **options: _P.kwargs) -> _T:
    """Return what a public function returns; after Ctrl-C what it had done by then.

    Raises
    ------
    KeyboardInterrupt
        It had done nothing yet.
    """
    try:
        return call(*args, **options)
    except KeyboardInterrupt:
        kept = hl.last_interrupted()
        if kept is None:
            raise
        return kept


def placement_of(
    given: Namespace,
    prepared: PreparedModel,
    affinity: Affinity | Placement | None = None,
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
) -> Placement:
    """Return the placement that ``-d``, ``--affinity``, ``--fix`` and ``--property`` say."""
    from hetero_lab.backend.properties import merged_properties

    own = options.properties(given.property)
    fixes = options.fixes(given.fix)
    if affinity is None and given.affinity is not None:
        affinity = read_affinity(given.affinity)
    start = _start(prepared, given, affinity)
    placed = start.affinity.fix(patterns=fixes) if fixes else start.affinity
    _check_owners(own, given.device, placed)
    return dataclasses.replace(
        start,
        affinity=placed,
        label=f"{start.label} with {', '.join(given.fix)}" if given.fix else start.label,
        device_properties=merged_properties(defaults or {}, start.device_properties, own),
        direct=start.direct and placed == start.affinity,
    )


def emulate(texts: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """Register what ``--emulate`` says; return the properties that set each base apart."""
    contrast: dict[str, Mapping[str, Any]] = {}
    for spec in options.emulations(texts):
        device = hl.emulate(**{**dataclasses.asdict(spec), "properties": dict(spec.properties)})
        if device.contrast:
            contrast[device.base] = device.contrast
    return contrast


def read_affinity(path: str | os.PathLike[str]) -> Affinity:
    """Read an affinity from .json or .csv."""
    readers = {".json": hl.Affinity.from_json, ".csv": hl.Affinity.from_csv}
    read = readers.get(Path(path).suffix.lower())
    if read is None:
        raise ArgumentError(
            f"{shorten(os.fspath(path))} is not an affinity: name a .json or .csv file, as "
            "affinity.to_json(file) and affinity.to_csv(file) write it."
        )
    return read(path)


def check_targets(files: Iterable[str | None], directories: Iterable[str | None]) -> None:
    """Raise OutputPathError before anything is run, if a target cannot be written."""
    for file in files:
        if file is not None:
            check_writable(file)
    for directory in directories:
        if directory is not None:
            # What is missing will be made, so what matters is the lowest that is there.
            path = Path(directory).absolute()
            there = next(p for p in [path, *path.parents] if p.exists())
            check_writable(there / "profile.json")


@contextlib.contextmanager
def warnings_to(show: Callable[[str], object]) -> Iterator[None]:
    """Hand the text of each of our warnings to ``show``, without file and line."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", HeteroLabWarning)
        before = warnings.showwarning

        def handle(message: Any, category: Any, *rest: Any, **more: Any) -> None:
            if issubclass(category, HeteroLabWarning):
                show(f"Note: {message}")
            else:
                before(message, category, *rest, **more)

        warnings.showwarning = handle
        yield


def _start(
    prepared: PreparedModel, given: Namespace, affinity: Affinity | Placement | None
) -> Placement:
    """Return the placement before fixes."""
    from hetero_lab.backend.bound import bind
    from hetero_lab.backend.core import shared_core
    from hetero_lab.backend.devices import device_names
    from hetero_lab.placement.placement import resolve
    from hetero_lab.placement.priorities import Priorities

    if affinity is None:
        if given.device is None:
            raise ArgumentError(
                "Name the device: -d HETERO:GPU,CPU or -d CPU. "
                f"Devices: {', '.join(device_names(shared_core()))}."
            )
        return resolve(bind(prepared), given.device).placement
    start = affinity if isinstance(affinity, hl.Placement) else hl.Placement(affinity)
    if not start.label:
        start = dataclasses.replace(start, label=str(given.affinity))
    start.affinity.check_model(prepared.graph)
    if given.device is not None:
        named = Priorities.parse(given.device).devices
        others = [device for device in start.affinity.devices if device not in named]
        if others:
            raise ArgumentError(
                f"The affinity uses {names_at_hand(others)}, which -d {given.device} does not "
                "name. Leave -d out: an affinity says the device of every op."
            )
    return start


def _check_owners(own: Mapping[str, object], device: str | None, affinity: Affinity) -> None:
    """Raise PropertyError for a property that nothing would use."""
    from hetero_lab.backend.core import shared_core
    from hetero_lab.backend.devices import check_device

    named = (device or "").removeprefix("HETERO:").split(",")
    for owner in own:
        check_device(owner, shared_core())
        if owner not in affinity.devices and owner not in named:
            raise PropertyError(
                f"--property {owner}.… would change nothing: the placement uses "
                f"{', '.join(affinity.devices)}."
            )
