"""The command line ``hetero-lab``: parse, call, print."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import hetero_lab as hl
from hetero_lab.cli import commands, texts
from hetero_lab.cli.derive import OptionParser
from hetero_lab.cli.options import named
from hetero_lab.errors import ArgumentError, HeteroLabError, did_you_mean

FAILED, ERROR, NOT_KNOWN, INTERRUPTED, BROKEN_PIPE = 1, 2, 3, 130, 141


_OF_WRONG = {"none": 0, "rounding": 0, "not known": NOT_KNOWN}


def _success(_: Any) -> int:
    return 0


@dataclass(frozen=True)
class Command:
    """A command: the public functions that it calls, its options, and how it says the result."""

    name: str
    help: str
    run: Callable[[argparse.Namespace], Any]
    text: Callable[[argparse.Namespace, Any], str]
    functions: str = ""
    """Their signatures have the defaults of the options."""
    options: str = ""
    description: str | None = None
    exit_code: Callable[[Any], int] = _success
    """What the result means to a script."""
    examples: str = ""
    """One a line, without the name of the program."""

    def fill(self, parser: argparse.ArgumentParser) -> None:
        """Add the options to a parser."""
        options = named(self.options)
        functions = [getattr(hl, name) for name in self.functions.split()]
        for option in options:
            option.add_to(parser, functions)
        parser.set_defaults(options=options, contrast={}, prepared=None)


def parser() -> OptionParser:
    """Return the parser of the whole command line."""
    top = OptionParser(
        prog="hetero-lab",
        description="A laboratory for OpenVINO's HETERO device: placement, cost, evidence.",
    )
    top.add_argument("--version", action="store_true", help="print the versions and end")
    subparsers = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=OptionParser)
    for command in COMMANDS:
        subparsers.add_parser(
            command.name,
            help=command.help,
            description=command.description or f"{command.help[0].upper()}{command.help[1:]}.",
            epilog=examples(command.examples, "hetero-lab"),
            fill=command.fill,
        )
    return top


def examples(lines: str, program: str) -> str | None:
    """Return the end of a help: examples, one a line."""
    shown = [f"  {program} {line.strip()}" for line in lines.strip().splitlines()]
    return "\n".join(["examples:", *shown]) if shown else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code.

    2 is an error, 130 Ctrl-C, 1 outputs that ``apply`` or ``find-wrong`` found wrong, or a
    contract that ``verify`` found broken.
    """
    _print_anything()
    try:
        with commands.warnings_to(_say_aside):
            code = _run(sys.argv[1:] if arguments is None else list(arguments))
            sys.stdout.flush()
            return code
    except HeteroLabError as error:
        _say_aside(f"Error: {' '.join(str(error).split())}")
        return ERROR
    except KeyboardInterrupt as stop:
        _say_aside(f"Interrupted. {stop}".rstrip())
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has gone (`| head`); the interpreter must not try to write the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def _run(arguments: Sequence[str]) -> int:
    known = {command.name: command for command in COMMANDS}
    first = arguments[0] if arguments else "-"
    if not first.startswith("-") and first not in known:
        raise ArgumentError(
            f"There is no command {first}.{did_you_mean(first, known)} hetero-lab -h lists them."
        )
    given = parser().parse_args(arguments)
    if given.version:
        print(f"hetero-lab {hl.__version__}, OpenVINO {metadata.version('openvino')}")
        return 0
    if given.command is None:
        raise ArgumentError("COMMAND is missing. hetero-lab -h lists the commands.")
    command = known[given.command]
    commands.check_targets(given)
    given.contrast = commands.emulate(getattr(given, "emulate", []))
    result = command.run(given)
    text = "" if getattr(given, "quiet", False) else command.text(given, result)
    if text:
        print(text.rstrip("\n"))
    if getattr(result, "interrupted", False):
        return INTERRUPTED
    return int(command.exit_code(result))


def _demo(given: argparse.Namespace) -> Any:
    from hetero_lab.cli import demo

    return demo.run(given.export, say=print)


def _noise(given: argparse.Namespace) -> Any:
    return hl.measure_noise(given.device, budget_s=given.budget)


_PLACED = "shape property affinity fix"

COMMANDS = (
    Command(
        "demo",
        "what to deploy of a small bundled model, in half a minute",
        _demo,
        lambda *_: "",
        options="demo",
    ),
    Command(
        "devices",
        "the devices here, and why others are missing",
        lambda _: hl.devices(),
        texts.devices_text,
        options="emulate",
    ),
    Command(
        "samples",
        "the sample models, to be used by name",
        lambda _: hl.samples(),
        texts.samples_text,
    ),
    Command(
        "profile",
        "measure one placement of one model",
        commands.profile,
        texts.profile_text,
        "profile",
        "model device iterations warmup budget executor requests prompt-tokens new-tokens csv "
        f"export input isolate {_PLACED} no-counters no-reference html show-counters table quiet "
        "emulate",
        "Compile a placement, measure its latency and its ops, compare its outputs.",
        examples="""
profile digits_inception -d CPU
profile model.onnx -d HETERO:GPU,CPU --fix '^head_=CPU' --csv profile.csv
profile model.xml -d HETERO:ACC,CPU --emulate ACC:unsupported=Softmax,Concat
""",
    ),
    Command(
        "sweep",
        "measure many placements in turn and rank them",
        commands.sweep,
        texts.sweep_text,
        "sweep",
        "model devices orders each-fix grid executors each-requests budget precision turns "
        "sustained store cache-dir model-cache csv export shape input isolate no-counters "
        "no-reference html table quiet emulate",
        "Measure many placements in turn and rank them with their uncertainty.",
        examples="""
sweep model.onnx -d GPU,CPU --orders all --store sweep --csv sweep.csv
sweep model.onnx -d GPU,CPU --fix '^head_=CPU' --fix '^block1/=CPU'
""",
    ),
    Command(
        "optimize",
        "find the fastest placement and prove it by measuring",
        commands.optimize,
        texts.optimize_text,
        "optimize",
        "model devices budget affinity-out csv table shape input objective memory-limit pin costs "
        "property isolate html quiet emulate",
        "Measure costs, plan, measure the plans, learn, repeat; prove the best against every\n"
        "single device and HETERO's own choice.",
        examples="""
optimize model.onnx -d GPU,CPU --affinity-out best.json --html best.html
freeze model.onnx deploy/ --affinity best.json
""",
    ),
    Command(
        "support",
        "the op types that each device cannot run",
        commands.support,
        texts.support_text,
        "support",
        "model all-devices table csv shape html emulate",
    ),
    Command(
        "lint",
        "find what is awkward about a placement, and the remedy",
        commands.lint,
        texts.lint_text,
        "lint",
        f"model device costs table csv {_PLACED} html emulate",
    ),
    Command(
        "explain",
        "compare two placements, and say where their difference comes from",
        commands.explain,
        texts.result_text,
        "explain",
        "model before after costs shape html emulate",
    ),
    Command(
        "freeze",
        "write a placement that runs with openvino and numpy alone",
        commands.freeze,
        texts.freeze_text,
        "freeze",
        f"model device directory {_PLACED} emulate",
    ),
    Command(
        "noise",
        "measure how much two compiles of one placement differ on a device",
        _noise,
        texts.noise_text,
        "measure_noise",
        "device budget emulate",
        "Compile one placement many times, measure the compiles in turns, and keep by how\n"
        "much they differ. Later sweeps on this host use it for their intervals and groups.",
    ),
    Command(
        "plan",
        "measure what each op and boundary costs and plan the best placement",
        commands.plan,
        texts.plan_text,
        "calibrate plan",
        "model costs-devices plan-objective budget time-limit solver kept-costs affinity-out shape "
        "input isolate memory-limit pin property html quiet emulate",
        "Measure what each op and boundary costs, or take it from a file, and plan the best\n"
        "placement. A plan is a prediction: hetero-lab apply or sweep measures it.",
        examples="""
plan model.onnx -d GPU,CPU --costs costs.json --affinity-out plan.json
plan model.onnx --costs costs.json --memory-limit GPU=512MiB --pin '^head_=CPU'
""",
    ),
    Command(
        "apply",
        "run a stored affinity or a frozen placement, check its outputs, time it",
        commands.apply,
        texts.apply_text,
        "profile",
        "model stored iterations shape input property html table quiet emulate",
        "Compile a model with a stored affinity, or run a frozen directory, compare its\n"
        "outputs with the f32 reference and measure its latency. The exit code is 1 if an\n"
        "output differs by more than rounding.",
        exit_code=texts.differs,
        examples="""
apply model.onnx plan.json
apply model.onnx frozen/
""",
    ),
    Command(
        "classify",
        "run a picture through an image classifier",
        commands.classify,
        texts.classify_text,
        "classify",
        f"model device image top counters mean scale bgr csv {_PLACED} html quiet emulate",
        "A picture in, the best classes out, on any placement.",
        examples="""
classify efficientnet_lite0 cat.jpg -d HETERO:GPU,CPU -pc
classify model.onnx cat.jpg -d CPU --mean 123.7,116.3,103.5 --scale 58.4,57.1,57.4
""",
    ),
    Command(
        "find-wrong",
        "find the ops that compute wrong numbers, and the way around them",
        commands.find_wrong,
        texts.result_text,
        "find_wrong",
        f"model device input tolerance budget costs fault isolate {_PLACED} html quiet emulate",
        "Compare a placement with a single device in f32; where they differ by more than\n"
        "rounding, find the ops to blame and the cheapest affinity without the fault. The\n"
        "exit code is 1 if something is wrong, 3 if the budget ended before that was known.",
        exit_code=lambda wrong: _OF_WRONG.get(wrong.kind, FAILED),
    ),
    Command(
        "advise",
        "say what to deploy, and why",
        commands.advise,
        texts.advise_text,
        "advise",
        "models all-devices data max-drop requests budget store deploy csv shape input objective "
        "memory-limit costs property isolate html quiet emulate",
        "Measure what could be deployed on the devices here (single devices, AUTO, MULTI,\n"
        "HETERO, an optimised placement, int8), drop what is hopeless early, and say what is\n"
        "best and how sure that is.",
        examples="""
advise model.onnx
advise digits_inception --data digits --budget 60 --html advice.html --deploy deploy
advise det=det.onnx rec=rec.onnx --shape rec.x=1,3,48,320 --deploy deploy
""",
    ),
    Command(
        "verify",
        "prove a deployed directory again on what is installed here",
        commands.verify,
        texts.result_text,
        "verify verify_across",
        "directory across slower data html quiet",
        "Compile and run a deployed directory, and hold it to its contract: model, affinity,\n"
        "properties, devices, partition, outputs, latency. The exit code is 1 if a part is\n"
        "broken.",
        exit_code=lambda verified: 0 if verified.ok else FAILED,
    ),
)


def _print_anything() -> None:
    # An op's name may have characters that the terminal's encoding lacks.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _say_aside(text: str) -> None:
    print(f"hetero-lab: {text}", file=sys.stderr)
