"""The command line ``hetero-lab``: parse, call, print."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata

from hetero_lab.cli import (
    commands,
    inspect as inspect_commands,
    options,
    plan as plan_commands,
    search as search_commands,
    sweep as sweep_commands,
)
from hetero_lab.errors import ArgumentError, HeteroLabError
from hetero_lab.terminal import columns

DIFFERENT, ERROR, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141

_EXAMPLES = """
examples:
  hetero-lab profile digits_inception -d CPU
  hetero-lab profile model.onnx -d HETERO:GPU,CPU --fix '^head_=CPU' --csv profile.csv
  hetero-lab profile model.xml -d HETERO:ACC,CPU --emulate ACC:unsupported=Softmax,Concat
"""
_SWEEP_EXAMPLES = """
examples:
  hetero-lab sweep model.onnx -d GPU,CPU --orders all --store sweep --csv sweep.csv
  hetero-lab sweep model.onnx -d GPU,CPU --fix '^head_=CPU' --fix '^block1/=CPU'
"""
_PLAN_EXAMPLES = """
examples:
  hetero-lab plan model.onnx -d GPU,CPU --costs costs.json --affinity-out plan.json
  hetero-lab plan model.onnx --costs costs.json --memory-limit GPU=512MiB --pin '^head_=CPU'
"""
_OPTIMIZE_EXAMPLES = """
examples:
  hetero-lab optimize model.onnx -d GPU,CPU --affinity-out best.json --html best.html
  hetero-lab freeze model.onnx deploy/ --affinity best.json
"""
_APPLY_EXAMPLES = """
examples:
  hetero-lab apply model.onnx plan.json
  hetero-lab apply model.onnx frozen/
"""
_ADVISE_EXAMPLES = """
examples:
  hetero-lab advise model.onnx
  hetero-lab advise digits_inception --data digits --budget 60 --html advice.html --deploy deploy
  hetero-lab advise det=det.onnx rec=rec.onnx --shape rec.x=1,3,48,320 --deploy deploy
"""
_CLASSIFY_EXAMPLES = """
examples:
  hetero-lab classify efficientnet_lite0 cat.jpg -d HETERO:GPU,CPU -pc
  hetero-lab classify model.onnx cat.jpg -d CPU --mean 123.7,116.3,103.5 --scale 58.4,57.1,57.4
"""


@dataclass(frozen=True)
class Command:
    """A command: its options, and what it does with them."""

    name: str
    help: str
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    description: str | None = None
    examples: str | None = None
    takes_emulate: bool = True


def parser() -> options.OptionParser:
    """Return the parser of the whole command line."""
    top = options.OptionParser(
        prog="hetero-lab",
        description="A laboratory for OpenVINO's HETERO device: placement, cost, evidence.",
    )
    top.add_argument("--version", action="store_true", help="print the versions and end")
    subparsers = top.add_subparsers(
        dest="command", metavar="COMMAND", parser_class=options.OptionParser
    )
    for command in COMMANDS:
        sub = subparsers.add_parser(
            command.name,
            help=command.help,
            description=command.description,
            epilog=command.examples,
        )
        command.add_options(sub)
        sub.set_defaults(run=command.run)
        if command.takes_emulate:
            options.add_shared(sub, "emulate")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code.

    2 is an error, 130 Ctrl-C, 1 outputs that ``apply`` or ``find-wrong`` found wrong, or a
    contract that ``verify`` found broken.
    """
    _print_anything()
    try:
        with commands.warnings_to(_say_aside):
            given = options.parse(parser(), sys.argv[1:] if arguments is None else arguments)
            if given.version:
                print(_versions())
                return 0
            if given.command is None:
                raise ArgumentError("COMMAND is missing. hetero-lab -h lists the commands.")
            code = given.run(given)
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


def _demo(given: argparse.Namespace) -> int:
    from hetero_lab.cli import demo

    interrupted = demo.run(given.export, say=print, progress=True)
    return INTERRUPTED if interrupted else 0


def _devices(given: argparse.Namespace) -> int:
    import hetero_lab as hl

    commands.emulate(given.emulate)
    rows = [["DEVICE", "WHAT IT IS", "CAPABILITIES"]]
    for row in hl.devices().to_dict("records"):
        name = f"{row['full_name']} (emulated)" if row["emulated_on"] else row["full_name"]
        if not row["available"]:
            name = f"not available: {row['problem']}"
        elif row["problem"]:
            name = f"{name} ({row['problem']})"
        rows.append([row["device"], name, row["capabilities"]])
    print(columns(rows))
    return 0


def _samples(_: argparse.Namespace) -> int:
    import hetero_lab as hl

    rows = [["SAMPLE", "MIB", "FROM", "WHAT IT IS FOR"]]
    for row in hl.samples().to_dict("records"):
        here = "bundled" if row["bundled"] else f"{row['package']}{' (here)' * row['cached']}"
        rows.append([row["name"], f"{row['n_bytes'] / (1 << 20):.1f}", here, row["task"]])
    print(columns(rows))
    return 0


def _profile(given: argparse.Namespace) -> int:
    from hetero_lab.model.read import prepare

    commands.check_targets(files=[given.csv, given.html], directories=[given.export])
    contrast = commands.emulate(given.emulate)
    prepared = prepare(given.model, options.shapes(given.shape))
    result = commands.run_profile(given, prepared, defaults=contrast)
    if not given.quiet:
        text = result.report(tables=given.table, counters=given.counters)
        first, *blocks = text.rstrip().split("\n\n")
        next_step = commands.after_profile(given, prepared, result)
        print("\n\n".join(["\n".join([first, *next_step]), *blocks]))
    return INTERRUPTED if result.interrupted else 0


def _sweep(given: argparse.Namespace) -> int:
    contrast = commands.emulate(given.emulate)
    result = sweep_commands.run_sweep(given, given.model, defaults=contrast)
    if not given.quiet:
        print(result.report() if given.table else result, end="" if given.table else "\n")
        print(f"Next:       {commands.again(given, 'optimize', '-d', given.devices)}")
    return INTERRUPTED if result.interrupted else 0


def _optimize(given: argparse.Namespace) -> int:
    contrast = commands.emulate(given.emulate)
    result = search_commands.run_optimize(given, contrast)
    if not given.quiet:
        print(result)
        if given.table:
            print(f"\n{result.sweep.report()}\n{result.history.to_string(index=False)}")
        saved = given.affinity_out or "best.json"
        if given.affinity_out is None:
            print(f"Keep it with --affinity-out {saved}.")
        print(f"Next:       {commands.again(given, 'freeze', 'deploy', '--affinity', saved)}")
    return INTERRUPTED if result.interrupted else 0


def _support(given: argparse.Namespace) -> int:
    commands.emulate(given.emulate)
    print(inspect_commands.support_text(given))
    return 0


def _lint(given: argparse.Namespace) -> int:
    print(inspect_commands.lint_text(given, commands.emulate(given.emulate)))
    return 0


def _explain(given: argparse.Namespace) -> int:
    commands.emulate(given.emulate)
    print(inspect_commands.explain_text(given))
    return 0


def _freeze(given: argparse.Namespace) -> int:
    print(inspect_commands.freeze_text(given, commands.emulate(given.emulate)))
    return 0


def _noise(given: argparse.Namespace) -> int:
    import hetero_lab as hl

    commands.emulate(given.emulate)
    measured = hl.measure_noise(given.device, budget_s=given.budget, progress=True)
    print(f"Two compiles of one placement on {given.device} differ by {measured}.")
    return 0


def _plan(given: argparse.Namespace) -> int:
    contrast = commands.emulate(given.emulate)
    planned = plan_commands.run_plan(given, given.model, defaults=contrast)
    if not given.quiet:
        print(planned, end="")
        if given.affinity_out is not None:
            print(f"Next:  {commands.again(given, 'apply', given.affinity_out)}")
    return 0


def _apply(given: argparse.Namespace) -> int:
    contrast = commands.emulate(given.emulate)
    profile = plan_commands.run_apply(given, given.model, defaults=contrast)
    if not given.quiet:
        print(profile.report(tables=given.table, counters=False), end="")
    if profile.interrupted:
        return INTERRUPTED
    return DIFFERENT if plan_commands.differs(profile) else 0


def _find_wrong(given: argparse.Namespace) -> int:
    contrast = commands.emulate(given.emulate)
    result = search_commands.run_wrong(given, contrast)
    if not given.quiet:
        print(result)
    if result.interrupted:
        return INTERRUPTED
    return DIFFERENT if result.kind in ("op", "combination") else 0


def _advise(given: argparse.Namespace) -> int:
    result = search_commands.run_advise(given, commands.emulate(given.emulate))
    if not given.quiet:
        print(result, end="")
        if given.deploy is None:
            print(f"Next:       {commands.again(given, 'advise', '--deploy', 'deploy')}")
        else:
            for directory in search_commands.deployed(result, given.deploy):
                print(f"Next:       {commands.command_line('hetero-lab', 'verify', directory)}")
    return INTERRUPTED if result.interrupted else 0


def _verify(given: argparse.Namespace) -> int:
    result = inspect_commands.run_verify(given)
    if not given.quiet:
        print(result, end="")
    return 0 if result.ok else DIFFERENT


def _classify(given: argparse.Namespace) -> int:
    contrast = commands.emulate(given.emulate)
    result = inspect_commands.run_classify(given, defaults=contrast)
    if not given.quiet:
        print(result.report(), end="")
    return 0


def _add_demo_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--export", default="hetero_lab_demo", metavar="DIR", help="where to write (%(default)s)"
    )


def _add_noise_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-d", "--device", default="CPU", metavar="DEVICE", help="(%(default)s)")
    add(
        "-b",
        "--budget",
        type=options.seconds,
        default=60.0,
        metavar="SECONDS",
        help="measure more compiles while it lasts, at least one group of them (%(default)s)",
    )


def _add_none(_: argparse.ArgumentParser) -> None:
    pass


COMMANDS = (
    Command(
        "demo",
        "what to deploy of a small bundled model, in half a minute",
        _add_demo_options,
        _demo,
        takes_emulate=False,
    ),
    Command("devices", "the devices here, and why others are not", _add_none, _devices),
    Command(
        "samples",
        "the sample models, to be used by name",
        _add_none,
        _samples,
        takes_emulate=False,
    ),
    Command(
        "profile",
        "measure one placement of one model",
        options.add_profile_options,
        _profile,
        "Compile a placement, measure its latency and its ops, compare its outputs.",
        _EXAMPLES,
    ),
    Command(
        "sweep",
        "measure many placements in turn and rank them",
        sweep_commands.add_sweep_options,
        _sweep,
        "Measure many placements in turn and rank them with their uncertainty.",
        _SWEEP_EXAMPLES,
    ),
    Command(
        "optimize",
        "find the fastest placement and prove it by measuring",
        search_commands.add_optimize_options,
        _optimize,
        "Measure costs, plan, measure the plans, learn, repeat; prove the best against every\n"
        "single device and HETERO's own choice.",
        _OPTIMIZE_EXAMPLES,
    ),
    Command(
        "support",
        "the op types that each device cannot run",
        inspect_commands.add_support_options,
        _support,
    ),
    Command(
        "lint",
        "what is awkward about a placement, and the remedy",
        inspect_commands.add_lint_options,
        _lint,
    ),
    Command(
        "explain",
        "what differs between two placements",
        inspect_commands.add_explain_options,
        _explain,
    ),
    Command(
        "freeze",
        "write a placement that runs with openvino and numpy alone",
        inspect_commands.add_freeze_options,
        _freeze,
    ),
    Command(
        "noise",
        "measure how much two compiles of one placement differ on a device",
        _add_noise_options,
        _noise,
        "Compile one placement many times, measure the compiles in turns, and keep by how\n"
        "much they differ. Later sweeps on this host use it for their intervals and groups.",
    ),
    Command(
        "plan",
        "measure what each op and boundary costs and plan the best placement",
        plan_commands.add_plan_options,
        _plan,
        "Measure what each op and boundary costs, or take it from a file, and plan the best\n"
        "placement. A plan is a prediction: hetero-lab apply or sweep measures it.",
        _PLAN_EXAMPLES,
    ),
    Command(
        "apply",
        "run a stored affinity or a frozen placement, check its outputs, time it",
        plan_commands.add_apply_options,
        _apply,
        "Compile a model with a stored affinity, or run a frozen directory, compare its\n"
        "outputs with the f32 reference and measure its latency. The exit code is 1 if an\n"
        "output differs by more than rounding.",
        _APPLY_EXAMPLES,
    ),
    Command(
        "classify",
        "run a picture through an image classifier",
        inspect_commands.add_classify_options,
        _classify,
        "A picture in, the best classes out, on any placement.",
        _CLASSIFY_EXAMPLES,
    ),
    Command(
        "find-wrong",
        "find the ops that compute wrong numbers, and the way around them",
        search_commands.add_wrong_options,
        _find_wrong,
        "Compare a placement with a single device in f32; where they differ by more than\n"
        "rounding, find the ops to blame and the cheapest affinity without the fault. The\n"
        "exit code is 1 if something is wrong, or if the budget ended before that was known.",
    ),
    Command(
        "advise",
        "say what to deploy, and why",
        search_commands.add_advise_options,
        _advise,
        "Measure what could be deployed on the devices here (single devices, AUTO, MULTI,\n"
        "HETERO, an optimised placement, int8), drop what is hopeless early, and say what is\n"
        "best and how sure that is.",
        _ADVISE_EXAMPLES,
    ),
    Command(
        "verify",
        "prove a deployed directory again on what is installed here",
        inspect_commands.add_verify_options,
        _verify,
        "Compile and run a deployed directory, and hold it to its contract: model, affinity,\n"
        "properties, devices, partition, outputs, latency. The exit code is 1 if a part is\n"
        "broken.",
        takes_emulate=False,
    ),
)


def _versions() -> str:
    from hetero_lab import __version__

    return f"hetero-lab {__version__}, OpenVINO {metadata.version('openvino')}"


def _print_anything() -> None:
    # An op's name may have characters that the terminal's encoding lacks.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _say_aside(text: str) -> None:
    print(f"hetero-lab: {text}", file=sys.stderr)
