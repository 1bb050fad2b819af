"""The options of the magics and of the command line: strings → plain values, in one place."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from hetero_lab.errors import ArgumentError, did_you_mean, names_at_hand, shorten

Value = bool | int | str

_EMULATE_KEYS = ("base", "supported", "unsupported", "faster_by")
_PROPERTY_KEY = re.compile(r"[A-Z][A-Z0-9_]*")


class OptionParser(argparse.ArgumentParser):
    """An argument parser that raises ArgumentError where argparse would end the process."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        self._names: list[str] = []  # of all options
        self._has_commands = False
        self.commands: Mapping[str, OptionParser] = {}
        super().__init__(*args, **kwargs)

    def add_argument(self, *names: Any, **options: Any) -> Any:
        """Add an argument, and remember what it is called."""
        action = super().add_argument(*names, **options)
        self._names += action.option_strings
        return action

    def add_subparsers(self, **options: Any) -> Any:
        """Add commands, whose options are their own."""
        self._has_commands = True
        action = super().add_subparsers(**options)
        self.commands = action.choices
        return action

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage."""
        raise ArgumentError(f"{message}. {self.prog} -h shows the options.")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse what is unknown here, where it is known whose options it is compared with."""
        try:
            given, unknown = super().parse_known_args(args, namespace)
        except ArgumentError:
            # An option that is missing may be there, but misspelt.
            options = [text.partition("=")[0] for text in args or () if text.startswith("--")]
            unknown = [name for name in options if name not in self._names]
            if unknown and not self._has_commands:
                self._refuse(unknown)
            raise
        if unknown:
            self._refuse(unknown)
        return given, unknown

    def _refuse(self, unknown: Sequence[str]) -> NoReturn:
        meant = did_you_mean(unknown[0], self._names)
        raise ArgumentError(
            f"unrecognized arguments: {' '.join(unknown)}.{meant} {self.prog} -h shows the options."
        )


@dataclass(frozen=True)
class Emulation:
    """What ``--emulate`` says: the arguments of :func:`hetero_lab.emulate`."""

    name: str
    base: str = "CPU"
    supported: frozenset[str] | None = None
    unsupported: frozenset[str] | None = None
    faster_by: str | None = None
    properties: tuple[tuple[str, Value], ...] = ()


# Options that several commands have: what argparse takes for each.
_SHARED: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "model": (
        ("model",),
        {"metavar": "MODEL", "help": "a sample's name or the path of a model file"},
    ),
    "device": (
        ("-d", "--device"),
        {"metavar": "DEVICE", "help": "HETERO:GPU,CPU or one device"},
    ),
    "devices": (
        ("-d", "--devices"),
        {"required": True, "metavar": "GPU,CPU", "help": "devices, the first one first"},
    ),
    "emulate": (
        ("--emulate",),
        {
            "action": "append",
            "default": [],
            "metavar": "NAME:supported=Convolution,MatMul",
            "help": "register an emulated device; other parts, after a colon each, are "
            "unsupported=, base=, faster_by=auto and properties, KEY=VALUE: "
            "ACC:unsupported=Softmax:faster_by=auto; may be repeated",
        },
    ),
    "shape": (
        ("--shape",),
        {
            "action": "append",
            "default": [],
            "metavar": "[INPUT=]1,3,224,224",
            "help": "static shape of an input, whose name may be left out where there is only "
            "one; may be repeated",
        },
    ),
    "input": (("--input",), {"metavar": "FILE", "help": "inputs from an .npz file"}),
    "objective": (
        ("--objective",),
        {
            "choices": ("latency", "throughput"),
            "default": "latency",
            "help": "of one request, or the time between results (%(default)s)",
        },
    ),
    "memory-limit": (
        ("--memory-limit",),
        {
            "action": "append",
            "default": [],
            "metavar": "DEVICES=2GiB",
            "help": "most that weights, states and boundary tensors of a device may take, or of "
            "several that share a memory, for instance GPU.0,CPU=6GiB; may be repeated",
        },
    ),
    "pin": (
        ("--pin",),
        {
            "action": "append",
            "default": [],
            "metavar": "PATTERN=DEVICE",
            "help": "keep the ops whose name matches the regular expression on a device; may be "
            "repeated",
        },
    ),
    "costs": (
        ("--costs",),
        {"metavar": "FILE", "help": "go on from these costs, of hetero-lab plan"},
    ),
    "property": (
        ("--property",),
        {
            "action": "append",
            "default": [],
            "metavar": "DEVICE.KEY=VALUE",
            "help": "property of a device, CPU.INFERENCE_PRECISION_HINT=f32; may be repeated",
        },
    ),
    "affinity": (
        ("--affinity",),
        {"metavar": "FILE", "help": "device of every op, from Affinity.to_json or to_csv"},
    ),
    "fix": (
        ("--fix",),
        {
            "action": "append",
            "default": [],
            "metavar": "PATTERN=DEVICE",
            "help": "put the ops whose name matches the regular expression on a device; may be "
            "repeated",
        },
    ),
    "isolate": (
        ("--isolate",),
        {
            "action": argparse.BooleanOptionalAction,
            "default": False,
            "help": "measure in processes of its own, which may crash (%(default)s)",
        },
    ),
    "no-counters": (
        ("--no-counters",),
        {"action": "store_true", "help": "do not measure single ops"},
    ),
    "no-reference": (
        ("--no-reference",),
        {"action": "store_true", "help": "do not compare the outputs"},
    ),
    "html": (
        ("--html",),
        {"metavar": "FILE", "help": "write a page with sentences, figures and tables"},
    ),
    "counters": (
        ("-pc",),
        {"action": "store_true", "dest": "counters", "help": "show the counters of every node"},
    ),
    "table": (("--table",), {"action": "store_true", "help": "show every row"}),
    "quiet": (("-q", "--quiet"), {"action": "store_true", "help": "show nothing"}),
}


def add_shared(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add options that several commands have; the names are those of the options themselves."""
    for name in names:
        flags, rest = _SHARED[name]
        parser.add_argument(*flags, **rest)


def add_profile_options(parser: argparse.ArgumentParser) -> None:
    """Add what ``%hetero_profile`` and ``hetero-lab profile`` have in common."""
    add = parser.add_argument
    add_shared(parser, "model", "device")
    add(
        "-n",
        "--iterations",
        type=_whole(1),
        metavar="N",
        help="timed inferences (100 if neither -n nor -b is given)",
    )
    add(
        "-w",
        "--warmup",
        type=_whole(0),
        metavar="W",
        help="inferences before the timed ones (until they are steady)",
    )
    add("-b", "--budget", type=seconds, metavar="SECONDS", help="stop timing after that long")
    add(
        "--executor",
        default="hetero",
        metavar="hetero|parallel",
        help="what runs the subgraphs: OpenVINO, or all devices at the same time (%(default)s)",
    )
    add(
        "--requests",
        type=_whole(1),
        default=1,
        metavar="N",
        help="with more than one, measure the time between results with N in flight too",
    )
    add(
        "--prompt-tokens",
        type=_whole(1),
        metavar="N",
        help="of a language model: tokens in the prompt, drawn at random",
    )
    add(
        "--new-tokens",
        type=_whole(2),
        metavar="N",
        help="of a language model: tokens to generate; times are then per further token",
    )
    add("--csv", metavar="FILE", help="write the summary row as CSV")
    add("--export", metavar="DIR", help="write all tables as CSV, readable by read_profile")
    add_shared(
        parser,
        "shape",
        "input",
        "isolate",
        "property",
        "affinity",
        "fix",
        "no-counters",
        "no-reference",
        "html",
        "counters",
        "table",
        "quiet",
    )


def split_line(line: str) -> list[str]:
    """Split the line of a magic at spaces; quotes group, a backslash is a plain character.

    Raises
    ------
    ArgumentError
        A quote is not closed.
    """
    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace_split = True
    lexer.commenters = ""
    lexer.escape = ""
    try:
        return list(lexer)
    except ValueError as error:
        raise ArgumentError(f"A quote is not closed in {shorten(line)}.") from error


def shapes(texts: Iterable[str]) -> dict[str, list[int]] | list[int]:
    """Read ``["x=1,3,224,224"]`` as ``{"x": [1, 3, 224, 224]}``, ``["1,3"]`` as ``[1, 3]``."""
    found: dict[str, list[int]] = {}
    for text in texts:
        name, equals, sizes = text.rpartition("=")
        numbers = sizes.strip().removeprefix("[").removesuffix("]").split(",")
        if bool(name) != bool(equals) or not all(size.strip().isdecimal() for size in numbers):
            raise ArgumentError(
                f"--shape {shorten(text)} is not of the form INPUT=1,3,224,224 (whole numbers)."
            )
        _once(found, name, "--shape")
        found[name] = [int(size) for size in numbers]
    if "" in found and len(found) > 1:
        raise ArgumentError("--shape: name the input of each shape, INPUT=1,3,224,224.")
    return found.get("", found)


def properties(texts: Iterable[str]) -> dict[str, dict[str, Value]]:
    """Read ``["CPU.INFERENCE_NUM_THREADS=2"]`` as ``{"CPU": {"INFERENCE_NUM_THREADS": 2}}``."""
    found: dict[str, dict[str, Value]] = {}
    for text in texts:
        left, equals, value = text.partition("=")
        device, _, key = left.rpartition(".")  # a device may have a dot: GPU.0
        if not (equals and device and key and value):
            raise ArgumentError(
                f"--property {shorten(text)} is not of the form DEVICE.KEY=VALUE, "
                "for instance CPU.INFERENCE_PRECISION_HINT=f32."
            )
        of_device = found.setdefault(device, {})
        _once(of_device, key, f"--property {device}.")
        of_device[key] = read_value(value)
    return found


def fixes(texts: Iterable[str]) -> dict[str, str]:
    """Read ``["^head_=CPU"]`` as ``{"^head_": "CPU"}``, in order; the later of two wins."""
    found: dict[str, str] = {}
    for text in texts:
        pattern, equals, device = text.rpartition("=")
        if not (equals and pattern and device):
            raise ArgumentError(
                f"--fix {shorten(text)} is not of the form PATTERN=DEVICE, for instance "
                "'^head_=CPU'."
            )
        found.pop(pattern, None)
        found[pattern] = device
    return found


def emulations(texts: Iterable[str]) -> list[Emulation]:
    """Read ``["ACC:unsupported=Softmax,Concat:base=CPU"]``: a name, then ``KEY=VALUE`` parts.

    Keys are ``base``, ``supported``, ``unsupported``, ``faster_by``, and names of
    properties.
    """
    return [_emulation(text) for text in texts]


def read_value(text: str) -> Value:
    """Read a property's value: ``True`` and ``False``, whole numbers, else the text itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,18}", text) else text


def _emulation(text: str) -> Emulation:
    form = "of the form NAME:supported=Convolution,MatMul or NAME:unsupported=Softmax:base=CPU"
    name, *parts = text.split(":")
    given: dict[str, str] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not (equals and key and value):
            raise ArgumentError(f"--emulate {shorten(text)} is not {form}.")
        if key not in _EMULATE_KEYS and not _PROPERTY_KEY.fullmatch(key):
            raise ArgumentError(
                f"--emulate does not know {shorten(key)}.{did_you_mean(key, _EMULATE_KEYS)} "
                f"Keys: {names_at_hand(_EMULATE_KEYS)}, or a property in upper case."
            )
        _once(given, key, "--emulate")
        given[key] = value
    if not name:
        raise ArgumentError(f"--emulate {shorten(text)} is not {form}.")
    return Emulation(
        name=name,
        base=given.get("base", "CPU"),
        supported=_op_types(given.get("supported")),
        unsupported=_op_types(given.get("unsupported")),
        faster_by=given.get("faster_by"),
        properties=tuple((k, read_value(v)) for k, v in given.items() if k not in _EMULATE_KEYS),
    )


def _op_types(text: str | None) -> frozenset[str] | None:
    return None if text is None else frozenset(t.strip() for t in text.split(",") if t.strip())


def _once(found: dict[str, Any], key: str, option: str) -> None:
    if key in found:
        raise ArgumentError(f"{option} gives {shorten(key)} twice.")


def _whole(least: int) -> Any:
    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,12}", text) or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"{shorten(text)} is not a whole number of at least {least}"
            )
        return int(text)

    return read


def seconds(text: str) -> float:
    """Read a number of seconds above 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{shorten(text)} is not a number of seconds above 0")
    return value


def parse(parser: OptionParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse; ``--input=x`` and ``--input x`` are the same.

    Raises
    ------
    ArgumentError
        An option that does not exist or is not whole.
    """
    return parser.parse_args(list(arguments))
