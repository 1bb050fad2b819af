"""Write what coding agents read: docs/outputs/agents/SKILL.md and llms.txt.

``python -m docs.agents`` writes both, from the commands and the first lines of the pages.
"""

from __future__ import annotations

import re
from pathlib import Path

from hetero_lab.cli.commands import COMMANDS, EXIT_CODES, GROUPS

HERE = Path(__file__).parent
AGENTS = HERE / "outputs" / "agents"
_SUMMARY = (
    "Measures how OpenVINO runs one model on several devices (HETERO: CPU, GPU, NPU), finds the "
    "fastest placement, and deploys it with a contract."
)
_SKILL = """\
---
name: hetero-lab
description: {summary} Use it to place, compare, explain or deploy an OpenVINO, ONNX or TFLite \
model on the devices of this machine.
---

# hetero-lab

Add `--json` to any command: stdout is then one JSON object, progress goes to stderr. Read \
`exit_code` first, then `verdict`, `notes` and `tables` (begin with `summary`, if there is one; \
others can be long); `next` has commands to go on with. A refusal has `error` with its `message` \
instead. Times in columns that end in `_us` are microseconds. `hetero-lab COMMAND -h` has every \
option.

## From a model to a deployment

```sh
hetero-lab doctor --json                                  # is a device missing, and why?
hetero-lab support MODEL --json                           # can each device run it?
hetero-lab advise MODEL -b 120 --deploy deploy --json     # what to deploy; up to two minutes
hetero-lab verify deploy --json                           # does it keep its contract?
```

`python deploy/run.py` then runs it with openvino and numpy alone. Dynamic shapes are given as \
`--shape 1,3,224,224`, those that your application uses, \
real inputs as `--input inputs.npz`. Commands for one placement take `-d HETERO:GPU,CPU`, the \
others a list, `-d GPU,CPU`. `--emulate ACC:unsupported=Softmax,Sigmoid` stands in for a device \
that is not here and lacks these ops: give it to each command, with `-d ACC,CPU`. With \
`--store DIRECTORY` (`sweep`, `advise`) a call that was too short goes on when it is made again. \
What is written with `--deploy` or `--csv` has its notes on stderr.

## To look closer

```sh
hetero-lab profile MODEL -d CPU -b 5 --json               # one placement
hetero-lab sweep MODEL -d CPU -b 10 --json                # several, compared
hetero-lab simplify MODEL -d CPU --json                   # why so many subgraphs
hetero-lab find-wrong MODEL -d CPU -b 20 --json           # which op computes wrong numbers
```

{commands}

## Exit codes

{codes}

## How to read it

- **undecided** is an answer: the run could not tell the placements apart. Give a larger `-b`, a \
quieter machine, or choose by other grounds. It never means *equal*; *as fast* does, within 5 %. \
Where `notes` say below which difference nothing could be seen, and more time does not help, \
`hetero-lab noise -d DEVICE` measures how much two compiles differ.
- A **ratio** is to the reference of its table; below 1 is faster. An interval that contains 1 \
shows no difference. An end that is null or 0 is not known: there were too few turns.
- **group**: rows of one group are not told apart. Do not rank inside a group.
- **judgement** (of `advise`) is against the best, `ratio` against the row with `reference` true.
- **share** (of `machine`) is of what a model asks for, or of its rate alone on its best way; \
`predicted_share` was not measured. A ratio of sets below 1 is better.
- Outputs: *rounding* is what the precision explains, which can be much: look at \
`max_relative_error`. *different* is wrong, whatever the speed.
- `verify` compares with the outputs kept when it was frozen, not with f32. Parts that are \
undecided are named in its verdict; with `--strict` they change the exit code.
- An interval holds for this run: minutes later, on a busy machine, the level can be another one.
- `interrupted` true: what was known by then, or an `error` if that was nothing. It ends within \
15 s.

## What not to claim

- Nothing about real speed of an **emulated** device (`emulated` in a row): it is the CPU under \
another name.
- Nothing about another machine: measure there, with `hetero-lab verify`.
- No speedup from two separate `profile` calls: put both in one `sweep`.
- No accuracy from matching outputs: that needs labelled data.
- A plan or prediction is not a measurement: `apply` or `sweep` measures it.
"""


def skill() -> str:
    """Return the page that teaches an agent the commands."""
    commands = [
        f"- **{title}**: " + "; ".join(f"`{name}` {COMMANDS[name].help}" for name in names.split())
        for title, names in GROUPS.items()
    ]
    codes = [f"- {code}: {meaning}" for code, meaning in EXIT_CODES.items()]
    return _SKILL.format(summary=_SUMMARY, commands="\n".join(commands), codes="\n".join(codes))


def llms() -> str:
    """Return the list of pages, with the first sentence of each."""
    lines = ["# hetero-lab", "", f"> {_SUMMARY}", "", "## Pages", ""]
    for page in sorted([*HERE.glob("*.md"), *(HERE / "howto").glob("*.md")]):
        title, *blocks = page.read_text("utf-8").split("\n\n")
        sentences = (re.match(r"[A-Z*`][^`].*?\.(?=\s|$)", " ".join(b.split())) for b in blocks)
        first = next((found[0] for found in sentences if found), "")
        said = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", first)
        where = page.relative_to(HERE).with_suffix(".html").as_posix()
        if title.startswith("# "):
            lines.append(f"- [{title[2:]}]({where}){f': {said}' if said else ''}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    AGENTS.mkdir(parents=True, exist_ok=True)
    (AGENTS / "SKILL.md").write_text(skill(), "utf-8")
    (AGENTS / "llms.txt").write_text(llms(), "utf-8")
