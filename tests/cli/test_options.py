"""The strings of magics and command line become plain values."""

from pathlib import PureWindowsPath

import pytest

from hetero_lab.cli import values
from hetero_lab.cli.commands import COMMANDS, GROUPS
from hetero_lab.cli.main import main
from hetero_lab.cli.options import spelled
from hetero_lab.errors import ArgumentError


@pytest.mark.parametrize("twice", ["-d HETERO:ACC,CPU -d CPU", "-d CPU --device=ACC"])
def test_devices_that_would_replace_others_are_refused(twice):
    parser = COMMANDS["profile"].parser()
    with pytest.raises(ArgumentError, match="is given twice"):
        parser.parse_args(["m.onnx", *twice.split()])
    again = parser.parse_args(["m.onnx", "-d", "CPU", "-b", "3", "-b", "4"])
    assert again.budget == 4  # the last one counts


def emulated(texts):
    return values.emulation(texts[0])


@pytest.mark.parametrize(
    ("read", "texts", "expected"),
    [
        (values.shapes, ["1,3,320,320"], [1, 3, 320, 320]),
        (values.shapes, ["x=1,3", "a=b:0=[2, 2]"], {"x": [1, 3], "a=b:0": [2, 2]}),
        (
            values.properties,
            ["CPU.A=True", "CPU.B=2", "GPU.0.C=f32", "CPU.D=x=y.z", "CPU.E=0.5", "CPU.F=false"],
            {
                "CPU": {"A": True, "B": 2, "D": "x=y.z", "E": "0.5", "F": False},
                "GPU.0": {"C": "f32"},
            },
        ),
        # Fixes keep their order, and the last wins.
        (values.fixes, ["a=b=CPU", "^c$=ACC", "a=b=ACC"], {"^c$": "ACC", "a=b": "ACC"}),
        (values.pins, ["^a=b=GPU"], {"^a=b": "GPU"}),
        (values.memory_limit, ["G.0,C=6GiB", "C=1"], {("G.0", "C"): "6GiB", ("C",): "1"}),
        (values.grid, ["CPU.A=1,x"], {"CPU.A": [1, "x"]}),
        (
            emulated,
            ["ACC:supported=MatMul"],
            {"name": "ACC", "properties": {}, "supported": {"MatMul"}},
        ),
        (
            emulated,
            ["C:unsupported=Softmax:base=CPU:faster_by=auto:N=2:ENABLE_CPU_PINNING=False"],
            {
                "name": "C",
                "properties": {"N": 2, "ENABLE_CPU_PINNING": False},
                "unsupported": {"Softmax"},
                "base": "CPU",
                "faster_by": "auto",
            },
        ),
    ],
)
def test_values(read, texts, expected):
    assert repr(read(texts)) == repr(expected)  # True is not 1, and the order counts


def test_paths_of_windows_stay_whole():
    sources = values.pairs([r"det=C:\my nets\a=b.onnx", r"rec=\\nas\x.onnx"], "", "", first=True)
    paths = {name: PureWindowsPath(text) for name, text in sources.items()}
    assert {name: path.anchor for name, path in paths.items()} == {
        "det": "C:\\", "rec": "\\\\nas\\x.onnx\\",
    }  # fmt: skip
    assert paths["det"].name == "a=b.onnx"
    words = values.split_line(r'"C:\my nets\m.onnx" -d CPU --costs=D:costs.json --csv ..\t.csv')
    given = COMMANDS["lint"].parser().parse_args(words)
    assert (given.model, given.costs) == (r"C:\my nets\m.onnx", "D:costs.json")
    assert PureWindowsPath(given.csv).parts == ("..", "t.csv")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("m -d CPU", ["m", "-d", "CPU"]),
        (r"C:\models\m.xml --fix '^a b\d=CPU'", [r"C:\models\m.xml", "--fix", r"^a b\d=CPU"]),
        ('"a b"  #c', ["a b", "#c"]),
        ("", []),
    ],
)
def test_split_line(line, words):
    assert values.split_line(line) == words
    with pytest.raises(ArgumentError, match="quote"):
        values.split_line(f"{line} 'x")


@pytest.mark.parametrize(
    ("read", "texts", "fact", "once"),
    [
        (values.shapes, "x x= =1 x=1,-3 x=1,,2 x=1.5 x=?,3 x=²", "--shape", "x=1"),
        (values.properties, "CPU A=1 CPU.A CPU.=1 .A=1 CPU.A=", "--property", "CPU.A=1"),
        (values.fixes, "a a= =CPU", "--fix", ""),
        (values.memory_limit, "GPU =2GiB GPU=", "NAME=VALUE", "GPU=1"),
        (values.grid, "speed speed=", "DEVICE.KEY=VALUE1,VALUE2", "a=1"),
        (
            emulated,
            ":base=CPU A:Softmax A:supported= A:suported=Softmax A:base=C:base=D",
            "--emulate",
            "",
        ),
    ],
)
def test_what_is_no_value(read, texts, fact, once):
    for text in ["", *texts.split()]:
        with pytest.raises(ArgumentError, match=fact):
            read([text])
    if once:
        with pytest.raises(ArgumentError, match="twice"):
            read([once, once])
    with pytest.raises(ArgumentError, match="name the input of each shape"):
        values.shapes(["1,3", "x=2"])


def test_sentences_name_options_in_place_of_arguments():
    text = "a larger budget_s=; data=, with which; objective='throughput', if; tolerance=None; x=1"
    options = (
        "a larger --budget; --data, with which; --objective throughput, if; --tolerance none; x=1"
    )
    assert spelled(text) == options


def test_no_command_gives_the_help_with_every_command_in_one_group(capsys):
    assert sorted(" ".join(GROUPS.values()).split()) == sorted(COMMANDS)
    with pytest.raises(SystemExit):
        main([])
    assert "get advice and deploy:" in capsys.readouterr().out
