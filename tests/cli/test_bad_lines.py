"""Bad input of every command: one line of error, exit code 2, and nothing is run."""

import pytest

from hetero_lab.measure import bench

ROWS = [
    ("bogus", "bogus"),
    ("profil MODEL", "Did you mean 'profile'?"),
    ("profile", "MODEL"),
    ("profile MODEL", "Devices: "),
    ("profile MODEL -d", "-d"),
    ("profile MODEL -d cpu", "Did you mean 'CPU'?"),
    ("profile MODEL -d FOO", "FOO"),
    ("profile MODEL -d HETERO", "names no device"),
    ("profile MODEL -d CPU,CPU", "twice"),
    ("profile MODEL -d hetero:CPU", "Did you mean 'HETERO:CPU'?"),
    ("profile MODEL -d CPU_FP32", "Did you mean 'CPU'?"),
    ("profile MODEL -d CPU --shape x=[", "of the form"),
    ("profile MODEL -d CPU --shape x=", "of the form"),
    ("profile MODEL -d CPU --csw x", "Did you mean '--csv'?"),
    ("profile MODEL -d CPU --csw", "hetero-lab profile -h"),
    ("profile MODEL -d CPU --quie", "--quie"),
    ("profile MODEL -d CPU -n 0", "at least 1"),
    ("profile MODEL -d CPU -n ten", "not a whole number"),
    ("profile MODEL -d CPU --executor fast", "There is no executor 'fast'"),
    ("profile MODEL -d CPU -b 0", "more than 0 seconds"),
    ("profile MODEL -d CPU -b nan", "at most 1,000,000,000"),
    ("profile MODEL -d CPU --prompt-tokens 0 --new-tokens 1", "at least 1"),
    ("profile MODEL -d CPU --shape x=1", "no input 'x'"),
    ("profile MODEL -d CPU --emulate ACC:bogus=1", "bogus"),
    ("profile MODEL -d CPU --emulate acc", "upper-case"),
    ("profile MODEL -d CPU --export /dev/null/below", "/dev/null"),
    ("profile no_such.onnx -d CPU", "does not exist"),
    ("profile MODEL -d CPU --fix (", "PATTERN=DEVICE"),
    ("profile MODEL -d CPU --fix (=CPU", "regular expression"),
    ("profile MODEL -d CPU --fix stem=FOO", "FOO"),
    ("devices --emulate ACC:supported=A:unsupported=B", "not both"),
    ("sweep MODEL --devcies CPU", "Did you mean '--devices'?"),
    ("sweep MODEL -d NOPE,CPU", "'NOPE' is not a device"),
    ("sweep MODEL -d CPU --fix x", "PATTERN=DEVICE"),
    ("sweep MODEL -d CPU --grid speed", "DEVICE.KEY=VALUE1,VALUE2"),
    ("sweep MODEL -d CPU --requests many", "of the form 1,4"),
    ("sweep MODEL -d CPU --executor hetero,fast", "There is no executor 'fast'"),
    ("sweep MODEL -d CPU --turns 1", "at least 2"),
    ("sweep MODEL -d CPU --csv /nowhere/at/all.csv", "does not exist"),
    ("find-wrong MODEL -d CPU --tolerance 0", "above 0"),
    (
        "advise a=x.xml b=y.xml",
        "unrecognized arguments: b=y.xml. Several models at the same time are a machine",
    ),
    ("advise MODEL --shape image=1,1,8", "takes [1,1,8,8]"),
    ("classify MODEL x.png -d CPU --mean a", "--mean"),
    ("classify MODEL x.png -d CPU --mean 1,2", "three"),
    ("classify MODEL x.png -d CPU --mean nan", "nan"),
    ("verify nosuch", "hetero-lab freeze writes a directory"),
    ("freeze MODEL x -d CPU --tolerance some", "invalid"),
    ("verify x --across openvino==2026.3 --data digits", "not with --across"),
    ("plan MODEL", "Name two devices or more"),
    ("plan MODEL -d CPU", "two devices or more"),
    ("PLAN --memory-limit BADACC=lots", "not a number of bytes"),
    ("PLAN --memory-limit GPU=2GiB", "memory_limit names 'GPU'"),
    ("PLAN --memory-limit 2GiB", "NAME=VALUE"),
    ("PLAN --pin ^mixed=GPU", "'^mixed' pins to 'GPU'"),
    ("PLAN --pin ^zzz=CPU", "zzz"),
    ("PLAN --pin (=CPU", "regular expression"),
    ("PLAN --pin softmax=BADACC", "does not support"),
    ("PLAN --objective speed", "speed"),
    ("PLAN --budget -1", "more than 0 seconds"),
    ("PLAN --affinity-out plan.txt", ".json or .csv"),
    ("PLAN --costs /nowhere/costs.json", "does not exist"),
    ("PLAN --property GPU.X=1", "would change nothing"),
]
PLAN = "plan MODEL --emulate BADACC:unsupported=Softmax -d BADACC,CPU"


@pytest.mark.parametrize(("line", "fact"), ROWS)
def test_error_is_one_line_and_exit_code_2(refused, monkeypatch, line, fact):
    monkeypatch.setattr(bench, "open_runner", pytest.fail)
    err = refused(*line.replace("PLAN", PLAN).replace("MODEL", "digits_inception").split())
    assert err.startswith("hetero-lab: Error: ")
    assert fact in err
    assert err.count("\n") == 1


def test_strange_files_are_one_line(refused, tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"\x08\x01nonsense")
    for model in (str(tmp_path / "m.onnx"), "no\nsuch.onnx"):
        assert refused("profile", model, "-d", "CPU").count("\n") == 1
