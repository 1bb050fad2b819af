"""Options of commands and magics: their flags, and the arguments of public functions they give.

An option has the type and the default of the function's signature. One without a text of its own
is explained by the function's docstring.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import not_
from typing import Any, NoReturn

import hetero_lab as hl
from hetero_lab.arguments import EXECUTORS
from hetero_lab.cli import values
from hetero_lab.errors import ArgumentError, did_you_mean


@dataclass(frozen=True)
class Option:
    """An option of commands and magics, and the argument of public functions that it gives."""

    flags: str
    metavar: str | None = None
    help: str = ""
    argument: str = ""
    """Name of the argument, where it differs from the option's."""
    read: Callable[[Any], Any] | None = None
    """Converts the parsed value into the argument; its errors do not show the usage."""
    parse: Mapping[str, Any] = field(default_factory=dict)
    """More settings of argparse."""

    @property
    def dest(self) -> str:
        """Name of the parsed value."""
        return self.parse.get("dest") or self.flags.split()[-1].lstrip("-").replace("-", "_")

    @property
    def gives(self) -> str:
        """Name of the argument."""
        return self.argument or self.dest

    def add_to(
        self, parser: argparse.ArgumentParser, functions: Sequence[Callable[..., Any]]
    ) -> None:
        """Add the option to a parser; the functions say its type, default and meaning."""
        owners = [f for f in functions if self.gives in inspect.signature(f).parameters]
        settings: dict[str, Any] = {"help": self.help, "metavar": self.metavar}
        action = self.parse.get("action")
        if action == "append":
            settings |= {"default": [], "help": f"{self.help}; may be repeated"}
        elif owners and action != "store_true":
            settings |= _from_signature(owners[0], self.gives)
            settings["help"] = self.help or explanation(owners[0], self.gives)
        if action is not None:
            settings.pop("type", None)
        if action == "store_true":
            del settings["metavar"]
        settings |= self.parse
        if settings.get("default") not in (None, []) and "%(default)s" not in settings["help"]:
            settings["help"] += " (%(default)s)"
        parser.add_argument(*self.flags.split(), **settings)


_switch = partial(Option, parse={"action": "store_true"})  # an option without a value
_many = partial(Option, parse={"action": "append"})


def arguments(
    args: argparse.Namespace, function: Callable[..., Any], options: Sequence[Option]
) -> dict[str, Any]:
    """Return the given arguments of a function; ``grid.requests`` is a dimension of ``grid``."""
    parameters = inspect.signature(function).parameters
    result: dict[str, Any] = {}
    for option in options:
        value = getattr(args, option.dest)
        argument, _, dimension = option.gives.partition(".")
        if argument in parameters and value is not None and value != []:
            value = value if option.read is None else option.read(value)
            if dimension:
                value = {dimension: value}
            together = {**result.get(argument, {}), **value} if isinstance(value, dict) else value
            result[argument] = together
    return result


def spelled(text: str) -> str:
    """Write the arguments in sentences as options: ``budget_s=`` as ``--budget``."""

    def option(match: re.Match[str]) -> str:
        value = (match[2] or match[3] or "").replace("None", "none")
        return f"{flags[match[1]]} {value}".rstrip() if match[1] in flags else match[0]

    options = [*_OWN, OPTIONS["examples"]]
    flags = {o.gives: o.flags.split()[-1] for o in options if o.parse.get("action") != "store_true"}
    return re.sub(r"\b([a-z_]+)=(?:'(\w+)'|(None))?(?=[\s,.;:)]|$)", option, text)


def explanation(function: Callable[..., Any], argument: str) -> str:
    """Return the first sentence of a numpydoc docstring about an argument."""
    text = inspect.getdoc(function) or ""
    # Arguments that are explained together have one line: "counters, reference".
    match = re.search(rf"^(?:\w+, )*{argument}(?:, \w+)*\n((?: {{4}}.*\n|\n)+)", text, re.MULTILINE)
    if match is None:
        return ""
    sentence = re.split(r"\. |\.$|; ", " ".join(match[1].split()))[0].replace("`", "")
    return f"{sentence[0].lower()}{sentence[1:]}".replace("%", "%%")


def _from_signature(function: Callable[..., Any], argument: str) -> dict[str, Any]:
    """Return the type and the default of an argument as settings of argparse."""
    parameter = inspect.signature(function).parameters[argument]
    kind, default = str(parameter.annotation).partition(" ")[0], parameter.default
    settings = {"default": default} if isinstance(default, str | int | float) else {}
    types = {"int": values.whole, "float": float}
    return {**settings, "type": types[kind]} if kind in types else settings


class OptionParser(argparse.ArgumentParser):
    """An argument parser that raises ArgumentError where argparse would end the process."""

    def __init__(self, prog: str, description: str = "", epilog: str | None = None, **more: Any):
        kind = argparse.RawDescriptionHelpFormatter
        super().__init__(prog, None, description, epilog, formatter_class=kind, **more)
        self.allow_abbrev = False

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage."""
        raise ArgumentError(f"{message}. {self.prog} -h shows the options.")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse unknown options, and name the one that was probably meant."""
        self._refuse_devices_twice(args or ())
        try:
            namespace, unknown = super().parse_known_args(args, namespace)
        except ArgumentError:
            # An option that is missing may be there, but misspelt.
            options = [text.partition("=")[0] for text in args or () if text.startswith("--")]
            self._refuse([name for name in options if name not in self._option_string_actions])
            raise
        self._refuse(unknown)
        return namespace, unknown

    def _refuse_devices_twice(self, args: Sequence[str]) -> None:
        """Refuse devices that would replace others, where somebody meant to add them."""
        options = [self._option_string_actions.get(text.partition("=")[0]) for text in args]
        names = [option.dest for option in options if option is not None]
        for name in ("device", "devices"):
            if names.count(name) > 1:
                raise ArgumentError(
                    f"-d is given twice, and the second would replace the first. Give it once; "
                    f"{self.prog} -h shows its form."
                )

    def _refuse(self, unknown: Sequence[str]) -> None:
        if unknown:
            hint = did_you_mean(unknown[0], self._option_string_actions)
            if self.prog.endswith("advise") and "=" in unknown[0].lstrip("-"):
                hint = " Several models at the same time are a machine: hetero-lab machine."
            raise ArgumentError(
                f"unrecognized arguments: {' '.join(unknown)}.{hint} {self.prog} -h shows the "
                "options."
            )


_DEVICES = "-d --devices", "GPU,CPU"
_PLACEMENT = "HETERO:GPU,CPU, one device, or a file with an affinity"
_MATCHING = "the ops whose name matches the regular expression on a device"
_NUMBERS, _WHOLE = {"type": values.listed(float, "123.7,116.3,103.5")}, {"type": values.whole}
_OBJECTIVES = {"choices": ("latency", "throughput", "balanced_memory")}


def _costs(costs: object) -> object:
    return hl.CostModel.from_json(costs) if isinstance(costs, str) else costs


_OWN = [
    # the model
    Option("model", "MODEL", "a sample's name or the path of a model file"),
    _many("--shape", "[INPUT=]1,3,224,224", "static shape of an input, named if several", "shapes"),
    Option("--input", "FILE", "take the inputs from an .npz file", "inputs"),
    Option("--prompt-tokens", "N", "language model: tokens in a random prompt", parse=_WHOLE),
    Option("--new-tokens", "N", "language model: tokens to generate, each timed", parse=_WHOLE),
    # devices and placements
    Option("-d --device", "DEVICE", "HETERO:GPU,CPU or one device"),
    Option(*_DEVICES, "devices, the first one first", parse={"required": True}),
    _many(
        "--emulate",
        "NAME:PART:…",
        "register an emulated device: ACC:unsupported=Softmax,Concat, or "
        "ACC:supported=Convolution,MatMul:base=CPU, or ACC:faster_by=auto:NUM_STREAMS=1",
    ),
    _many("--property", "DEVICE.KEY=VALUE", "set a property, CPU.INFERENCE_PRECISION_HINT=f32"),
    Option("--affinity", "FILE", "device of every op: of Affinity.to_json, to_csv or hl.save"),
    _many("--fix", "PATTERN=DEVICE", f"put {_MATCHING}"),
    Option("--keep", "SHARE"),
    _switch("--remedies", help="add each placement with fewer subgraphs"),
    Option("before", "BEFORE", _PLACEMENT),
    Option("after", "AFTER", _PLACEMENT),
    Option("--baseline", "DEVICE", f"is it slower than this: {_PLACEMENT}"),
    Option("stored", "STORED", "an affinity's file, or the directory of a frozen placement"),
    Option(
        "--orders",
        help="measure the order as given, or every order of the devices (%(default)s)",
        parse={"choices": ("given", "all"), "default": "given"},
    ),
    _many("--grid", "DEVICE.KEY=V1,V2", "cross with a property, * for all", "", values.grid),
    Option("--executor", "|".join(EXECUTORS), "run by OpenVINO, or on all devices at once"),
    Option("--requests", "N", "requests in flight; above 1, time between results too"),
    _switch(
        "--model-cache",
        help="measure each compiled and loaded from OpenVINO's model cache",
        argument="grid.model_cache",
        read=lambda flag: [False, True] if flag else [False],
    ),
    # the measurement
    Option("-b --budget", "SECONDS", "most time to measure", "budget_s"),
    Option("-n --iterations", "N", "timed inferences (100 without a budget)", parse=_WHOLE),
    Option("-w --warmup", "W", "inferences before the timed ones (until they are steady)"),
    Option("--precision", "SHARE", "stop sooner if all ratios are known that well"),
    Option("--turns", "N", "measure that many turns, whatever they show"),
    Option("--sustained", "SECONDS", argument="sustained_s"),
    Option(
        "--isolate",
        help="measure in separate processes, which may crash",
        parse={"action": argparse.BooleanOptionalAction},
    ),
    _switch("--no-counters", help="do not measure single ops", argument="counters", read=not_),
    _switch("--no-reference", help="do not compare the outputs", argument="reference", read=not_),
    Option("--store", "DIR", "keep measurements there; the same command resumes them"),
    Option("--cache-dir", "DIR", "keep compiled models there"),
    # the search
    Option("--objective", help="of one request, or between results", parse=_OBJECTIVES),
    _many(
        "--memory-limit",
        "DEVICES=2GiB",
        "most that weights, states and boundary tensors of a device may take, or of several that "
        "share a memory, for instance GPU.0,CPU=6GiB",
        read=values.memory_limit,
    ),
    _many("--pin", "PATTERN=DEVICE", f"keep {_MATCHING}", read=values.pins),
    Option("--costs", "FILE", "use these costs, of hetero-lab plan", read=_costs),
    Option("--solver", "NAME", "milp: the integer program, whatever the size"),
    Option(
        "--time-limit",
        "SECONDS",
        "most time for planning (%(default)s)",
        parse={"type": float, "default": 60.0},
    ),
    Option("--tolerance", "SHARE"),
    Option("--data", "NAME", "judge accuracy on a data set: digits", "", lambda n: hl.dataset(n)),
    Option("--max-drop", "SHARE"),
    _switch("--strict", help="end with 3, not 0, if a part is undecided or was not checked"),
    Option("--junit", "FILE", "write a report in JUnit's XML"),
    Option(
        "--across",
        "openvino==2026.2,2026.3",
        "verify with each of these releases, in environments that pip makes and keeps, and name "
        "the one that changed it",
        "releases",
        lambda text: values.names(text.removeprefix("openvino==")),
    ),
    Option("script", "SCRIPT", "ends with 1 if the symptom shows, else with 0; or its directory"),
    Option(
        "--between",
        help="an older and a newer release of OpenVINO, to find the one that brought it",
        parse={"nargs": 2, "metavar": ("OLD", "NEW")},
    ),
    Option("--timeout", "SECONDS", argument="timeout_s"),
    # classify
    Option("image", "IMAGE", "a PNG, JPEG, BMP, GIF, WebP, TIFF or PPM file"),
    Option("-k --top", "N", "best classes shown"),
    Option(
        "--mean",
        "M[,M,M]",
        "the input is (pixel - mean) / scale, pixels being 0 to 255; one number or three in the "
        "model's order of channels (a sample's own, else 0)",
        parse=_NUMBERS,
    ),
    Option("--scale", "S[,S,S]", "see --mean (a sample's own, else 1)", parse=_NUMBERS),
    Option(
        "--bgr",
        help="the model's first channel is blue",
        parse={"action": "store_true", "default": None},
    ),
    _switch("-pc --counters", help="show the counters of each subgraph"),
    # output
    Option("--csv", "FILE", "write the summary as CSV"),
    Option("--export", "DIR", "write all tables as CSV"),
    Option("--html", "FILE", "write a page with sentences, figures and tables"),
    Option("--affinity-out", "FILE", "write the affinity, .json or .csv"),
    Option("--deploy", "DIR", "write the advised placement, with its contract"),
    Option("directory", "DIR", "directory of the deployed model"),
    Option("--for", "RUNTIME", argument="runtime", parse={"required": True}),
    Option("--placed", "FILE", "write the model with its placement, .xml"),
    _switch("--json", help="print the result as one JSON object"),
    _switch("--table", help="show every row"),
    _switch("-q --quiet", help="show nothing", argument="progress", read=not_),
    _switch("-o --output", help="return the result"),
    Option("-v --variable", "VAR", "store the result in a variable"),
]
# Options that differ for one command have a separate name here.
OPTIONS = {option.flags.split()[-1].lstrip("-"): option for option in _OWN} | {
    "config": Option("config", "CONFIG", "a file that says what is asked of each model"),
    "own-budget": Option(
        "-b --budget",
        "SECONDS",
        "most time to measure (that of CONFIG, or 300)",
        "budget_s",
        parse={"type": float, "default": None},
    ),
    "own-objective": Option(
        "--objective",
        help="what is best (that of CONFIG, or share)",
        parse={"choices": ("share", "throughput", "deadlines"), "default": None},
    ),
    "all-devices": Option(*_DEVICES, "devices (all that are here)"),
    "costs-devices": Option(*_DEVICES, "devices, the first one first (those of --costs)"),
    "each-fix": _many("--fix", "PATTERN=DEVICE", f"measure one more placement: put {_MATCHING}"),
    "each-executor": Option(
        "--executor", ",".join(EXECUTORS), "as for profile, or both", "grid.executor", values.names
    ),
    "each-requests": Option(
        "--requests",
        "1,4",
        "requests in flight, each (1)",
        "grid.requests",
        parse={"type": values.listed(int, "1,4")},
    ),
    "directories": Option(
        "directories",
        "DIR",
        "directories of deployed models",
        "directory",
        parse={"nargs": "+"},
    ),
    "promise": Option(
        "--tolerance",
        "SHARE",
        "share by which the latency may be worse than promised, or none to promise none",
        read=lambda share: None if share == "none" else share,
        parse={"type": values.share_or_none},
    ),
    "examples": Option(
        "--input", "FILE", "promise the outputs of these inputs, .npz", "examples", lambda f: [f]
    ),
    "kept-costs": Option("--costs", "FILE", "take the costs from here, or keep them here"),
    "fault": Option("--export", "DIR", "write files that show the fault without hetero_lab"),
    "demo": Option(
        "--export",
        "DIR",
        "write there (%(default)s)",
        parse={"dest": "directory", "default": "hetero_lab_demo"},
    ),
    "show-counters": _switch("-pc --show-counters", help="show the counters of every node"),
}
