"""The commands: their options, the public functions that they call, the text of their results."""

from __future__ import annotations

import inspect
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import hetero_lab as hl
from hetero_lab.cli import calls, texts
from hetero_lab.cli.options import OPTIONS, OptionParser
from hetero_lab.lookup import annex

# The last two are what a shell reports of a program that SIGINT or SIGPIPE ended.
FAILED, ERROR, NOT_KNOWN, INTERRUPTED, BROKEN_PIPE = 1, 2, 3, 130, 141
EXIT_CODES = {
    0: "done",
    FAILED: "found: wrong outputs, a symptom, a broken contract",
    ERROR: "refused or failed: the message says why, and the way out",
    NOT_KNOWN: "not known: the budget ended, or with --strict a part is undecided",
    INTERRUPTED: "Ctrl-C or SIGTERM: what is known is printed and written",
    BROKEN_PIPE: "the reader of the output has gone",
}
_OF_WRONG = {"none": 0, "rounding": 0, "not known": NOT_KNOWN}
_EXAMPLES = """
hetero-lab profile digits_inception -d CPU
hetero-lab profile model.onnx -d HETERO:GPU,CPU --fix '^head_=CPU' --csv profile.csv
hetero-lab profile model.xml -d HETERO:ACC,CPU --emulate ACC:unsupported=Softmax,Concat
hetero-lab sweep model.onnx -d GPU,CPU --orders all --store sweep --csv sweep.csv
hetero-lab sweep model.onnx -d GPU,CPU --fix '^head_=CPU' --fix '^block1/=CPU'
hetero-lab optimize model.onnx -d GPU,CPU --affinity-out best.json --html best.html
hetero-lab freeze model.onnx deploy/ --affinity best.json
hetero-lab export model.onnx --affinity best.json --for benchmark_app --placed placed.xml
hetero-lab plan model.onnx -d GPU,CPU --costs costs.json --affinity-out plan.json
hetero-lab plan model.onnx --costs costs.json --memory-limit GPU=512MiB --pin '^head_=CPU'
hetero-lab apply model.onnx plan.json
hetero-lab apply model.onnx frozen/
hetero-lab advise model.onnx
hetero-lab advise digits_inception --data digits --budget 60 --html advice.html --deploy deploy
hetero-lab machine machine.toml --html machine.html --deploy deploy
hetero-lab classify efficientnet_lite0 cat.jpg -d HETERO:GPU,CPU -pc
hetero-lab classify model.onnx cat.jpg -d CPU --mean 123.7,116.3,103.5 --scale 58.4,57.1,57.4
"""


@dataclass(frozen=True)
class Command:
    """A command: the public functions that it calls, its options, and the text of its result."""

    name: str
    help: str
    options: str = ""
    text: Callable[[Namespace, Any], str] = lambda _, result: str(result)
    functions: str = ""
    """Their signatures explain the options; the first one's docstring explains the command."""
    run: Callable[[Namespace], Any] | None = None
    """By default the command is one call of the first function."""
    exit_code: Callable[[Namespace, Any], int] | None = None
    """The exit code for a result; 0 by default."""
    more: str = ""
    """An addition to the help."""

    def parser(self, prog: str = "", examples: str = _EXAMPLES) -> OptionParser:
        """Return the parser of the options; its help ends in the examples that begin with it."""
        prog = prog or f"hetero-lab {self.name}"
        functions = [attrgetter(name)(hl) for name in (self.functions or self.name).split()]
        summary = (inspect.getdoc(functions[0]) or "").splitlines()[0]
        lines = [f"  {line}" for line in examples.splitlines() if line.startswith(f"{prog} ")]
        epilog = "\n".join(["examples:", *lines]) if lines else None
        parser = OptionParser(prog, f"{summary}{self.more}", epilog)
        options = [OPTIONS[name] for name in self.options.split()]
        if prog.startswith("hetero-lab "):  # a magic returns its result
            options.append(OPTIONS["json"])
        for option in options:
            option.add_to(parser, functions)
        parser.set_defaults(options=options, contrast={}, prepared=None)
        return parser

    def result(self, args: Namespace) -> Any:
        """Return the result of the command, before it is written or shown."""
        calls.check_targets(args)
        args.contrast = calls.emulate(vars(args).get("emulate") or [])
        return self.run(args) if self.run else calls.call(args, self.functions or self.name)


_PLACED = "model device shape property affinity fix emulate"
_MEASURED = "budget shape input isolate html quiet emulate"

_ALL = (
    Command(
        "demo", "advise on a small bundled model, in half a minute", "demo", lambda *_: "",
        "advise", lambda args: annex("demo")(args.directory),
    ),
    Command("devices", "list the devices here", "emulate", texts.devices_text),
    Command("doctor", "say why a device is missing, and the way out"),
    Command("samples", "list the sample models, to be used by name", "", texts.samples_text),
    Command(
        "profile", "measure one placement of one model",
        f"{_PLACED} iterations warmup budget executor requests prompt-tokens new-tokens input "
        "isolate no-counters no-reference csv export html show-counters table quiet",
        texts.profile_text,
    ),
    Command(
        "sweep", "measure many placements in turn and rank them",
        f"model devices orders each-fix remedies grid each-executor each-requests {_MEASURED} "
        "precision turns sustained store cache-dir model-cache no-counters no-reference csv export "
        "table", texts.sweep_text, run=calls.sweep,
        exit_code=lambda _, sweep: (
            ERROR * bool(sweep.summary["status"].str.startswith("crashed").all())
            or NOT_KNOWN * texts.needs_longer(sweep)
        ),
        more="\nThe exit code is 2 if every placement crashed, 3 if the budget ended before one "
        "was\nmeasured.",
    ),
    Command(
        "optimize", "find the fastest placement and prove it by measuring",
        f"model devices {_MEASURED} objective memory-limit pin costs property affinity-out csv "
        "table",
        texts.optimize_text, run=calls.optimize,
    ),
    Command(
        "support", "list the op types that each device cannot run",
        "model all-devices shape table csv html emulate", texts.support_text,
    ),
    Command(
        "lint", "find what is awkward about a placement, and the remedy",
        f"{_PLACED} costs table csv html", texts.lint_text,
    ),
    Command(
        "simplify", "say why there are so many subgraphs, and the change that leaves few",
        f"{_PLACED} keep costs affinity-out table csv html", texts.simplify_text,
        run=calls.simplify,
    ),
    Command("explain", "compare two placements", "model before after costs shape html emulate"),
    Command(
        "freeze", "write a placement that runs with openvino and numpy alone",
        f"{_PLACED} directory examples promise quiet", texts.freeze_text,
    ),
    Command(
        "export", "print what another runtime needs to run a placement", f"{_PLACED} for placed",
        functions="interop.recipe", run=calls.export,
    ),
    Command(
        "noise", "measure how much two compiles of one placement differ on a device",
        "device budget emulate",
        lambda args, noise: f"Two compiles of one placement on {args.device} differ by {noise}.",
        "measure_noise",
    ),
    Command(
        "plan", "measure what each op and boundary costs and plan the best placement",
        f"model costs-devices {_MEASURED} objective time-limit solver kept-costs affinity-out "
        "memory-limit pin property",
        texts.plan_text, "plan calibrate", calls.plan,
        more=" The costs are\nmeasured, or taken from a file. A plan is a prediction: hetero-lab "
        "apply or sweep\nmeasures it.",
    ),
    Command(
        "apply", "run a stored affinity or a frozen placement, check its outputs, time it",
        "model stored iterations shape input property html table quiet emulate",
        lambda args, profile: profile.report(tables=args.table, counters=False),
        "profile", calls.apply,
        lambda _, profile: FAILED * texts.differs(profile),
        "\nThe exit code is 1 if an output differs by more than rounding.",
    ),
    Command(
        "classify", "run a picture through an image classifier",
        f"{_PLACED} image top counters mean scale bgr csv html quiet",
        lambda _, classes: classes.report(),
    ),
    Command(
        "find-wrong", "find the ops that compute wrong numbers, and the way around them",
        f"{_PLACED} input tolerance budget costs fault isolate html quiet",
        functions="find_wrong",
        exit_code=lambda _, wrong: _OF_WRONG.get(wrong.kind, FAILED),
        more="\nThe exit code is 1 if something is wrong, 3 if the budget ended before that was "
        "known.",
    ),
    Command(
        "investigate", "find what is wrong with a placement, and a small model that shows it",
        f"{_PLACED} input baseline prompt-tokens new-tokens tolerance budget between fault html "
        "quiet",
        exit_code=lambda _, search: (
            FAILED if search.symptom != "ok" else NOT_KNOWN * (not search.complete)
        ),
        more="\nThe exit code is 1 if there is a symptom, 3 if it is undecided whether the "
        "placement is slower than --baseline.",
    ),
    Command(
        "bisect", "find the release of OpenVINO that brought a symptom",
        "script between timeout csv html quiet",
        exit_code=lambda _, bisection: 0 if bisection.changed_by else NOT_KNOWN,
        more="\nThe exit code is 3 if no single release is found.",
    ),
    Command(
        "advise", "say what to deploy, and why",
        f"model all-devices data max-drop requests {_MEASURED} objective memory-limit costs "
        "property store deploy promise csv",
        texts.advise_text, run=calls.advise,
        more=" Single devices, AUTO, MULTI, HETERO, an optimised\nplacement and int8 are measured "
        "in turns, for up to five minutes (--budget).",
    ),
    Command(
        "machine", "plan several models on one machine, so that none starves",
        "config own-budget own-objective store deploy csv export html quiet emulate",
        texts.machine_text, run=calls.machine,
        more="\nCONFIG is in TOML: devices, objective, budget_s, processes, memory_limit, and for\n"
        "each model a table [models.NAME] with its model, rate_per_s, deadline_ms, requests,\n"
        "shape and ways (devices, files with an affinity, frozen directories).",
    ),
    Command(
        "verify", "prove deployed directories again on what is installed here",
        "directories across tolerance strict data junit csv html quiet",
        exit_code=lambda args, verified: {"broken": FAILED, "error": ERROR}.get(
            verified.status, NOT_KNOWN * (args.strict and not verified.is_decided)),
        more="\nThe exit code is 1 if a part is broken, with --strict 3 if one is not decided.",
    ),
)  # fmt: skip
COMMANDS = {command.name: command for command in _ALL}
GROUPS = {
    "start": "demo devices doctor samples",
    "see what runs where, its cost and faults": "profile support lint simplify explain classify "
    "find-wrong investigate bisect",
    "change and measure": "sweep optimize plan apply noise",
    "get advice and deploy": "advise machine freeze export verify",
}


def parser() -> OptionParser:
    """Return the parser of everything but the options of commands."""
    top = OptionParser(
        "hetero-lab", "A laboratory for OpenVINO's HETERO device: placement, cost, evidence."
    )
    top.add_argument("--version", action="store_true", help="print the versions and end")
    top.usage = "hetero-lab COMMAND [-h] [OPTION ...]"
    groups = (
        [f"{title}:", *(f"  {name:<12}{COMMANDS[name].help}" for name in names.split()), ""]
        for title, names in GROUPS.items()
    )
    codes = ["exit codes:", *(f"  {code:<12}{meaning}" for code, meaning in EXIT_CODES.items())]
    top.epilog = "\n".join([*(line for group in groups for line in group), *codes])
    return top
